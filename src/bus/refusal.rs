//! A daemon that cannot start tells those whose calls activated it why.
//!
//! Neither broker can say more than that a job failed, and one of them says even that only when its time has run out.
//! The calls wait at the bus for whoever takes the name: so it is taken, given back, and what came in between is refused.
//! A call after that activates anew.

use std::num::NonZeroUsize;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use zbus::connection::Builder;
use zbus::fdo::{DBusProxy, RequestNameFlags};
use zbus::message::{Flags, Header, Type};
use zbus::proxy::CacheProperties;
use zbus::{Connection, DBusError, Message, MessageStream};

use super::error::BusError;
use super::userbus::connect;
use super::{Admission, NAME};

/// The most calls that are answered; a bus lets fewer wait.
const CALLS: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");
/// How long all of it may take.
const WITHIN: Duration = Duration::from_secs(5);

type Failure = Box<dyn std::error::Error>;

/// The name, held in place of a service that does not start, and the calls that came for it.
#[derive(Debug)]
pub struct Waiting {
    admission: Admission,
    connection: Connection,
    bus: DBusProxy<'static>,
    messages: MessageStream,
    calls: Vec<Message>,
}

impl Waiting {
    /// Takes the name on the bus at `address`, and with it the calls that wait there for the service. `None` where there
    /// is no bus of this account, or another process has the name.
    pub async fn take(admission: Admission, address: &str) -> Option<Waiting> {
        timely(async {
            let stream = connect(admission, address).await?;
            let mut connection = Builder::unix_stream(stream.into_std()?).build().await?;
            connection.set_max_queued(CALLS);
            let bus = DBusProxy::builder(&connection).cache_properties(CacheProperties::No).build().await?;
            let messages = MessageStream::from(&connection);
            connection.request_name_with_flags(NAME, RequestNameFlags::DO_NOT_QUEUE).await?;
            let mut waiting = Waiting { admission, connection, bus, messages, calls: Vec::new() };
            waiting.bus.get_id().await?;
            waiting.collect();
            Ok(waiting)
        })
        .await
    }

    /// Whether anybody waits for an answer.
    pub fn any(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Gives the name back, and refuses all calls that came before with the error `NotStarted` and `why`.
    pub async fn refuse(mut self, why: &str) {
        timely(async {
            self.connection.release_name(NAME).await?;
            self.collect();
            for call in &self.calls {
                answer(&self.connection, &self.bus, self.admission, call, why).await?;
            }
            // It has read the answers when it answers this.
            self.bus.get_id().await?;
            Ok(())
        })
        .await;
    }

    /// What the bus has sent so far. It sends in order: what it had for the name comes before its answer to any later
    /// question.
    fn collect(&mut self) {
        while let Some(Some(Ok(message))) = self.messages.next().now_or_never() {
            let answered = !message.header().primary().flags().contains(Flags::NO_REPLY_EXPECTED);
            if message.message_type() == Type::MethodCall && answered {
                self.calls.push(message);
            }
        }
    }
}

async fn timely<T>(doing: impl Future<Output = Result<T, Failure>>) -> Option<T> {
    match tokio::time::timeout(WITHIN, doing).await {
        Ok(Ok(done)) => return Some(done),
        Ok(Err(error)) => tracing::info!("who called cannot be told: {error}"),
        Err(_) => tracing::info!("who called cannot be told: the bus does not answer"),
    }
    None
}

async fn answer(
    connection: &Connection,
    bus: &DBusProxy<'_>,
    admission: Admission,
    call: &Message,
    why: &str,
) -> Result<(), Failure> {
    let header = call.header();
    if admitted(bus, admission, &header).await {
        let error = BusError::new("NotStarted", why);
        connection.reply_error(&header, error.name(), &error.to_string()).await?;
    } else {
        let text = "AccessDenied: this service belongs to another account";
        connection.reply_error(&header, "org.freedesktop.DBus.Error.AccessDenied", &text).await?;
    }
    Ok(())
}

async fn admitted(bus: &DBusProxy<'_>, admission: Admission, header: &Header<'_>) -> bool {
    let Some(sender) = header.sender() else { return false };
    bus.get_connection_unix_user(sender.clone().into()).await.is_ok_and(|uid| admission.admits(uid))
}
