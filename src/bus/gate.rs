//! The gate in front of every connection: who may call, how much at once, how large.
//!
//! zbus dispatches whatever arrives, answers `Properties`, `Introspectable` and `Peer` by itself, and has no place
//! for a refusal. [`Gate`] is the reading half that zbus is given: it admits each message before zbus sees it. The
//! writing half ([`Writer`]) tells [`Traffic`] when a call was answered.
//!
//! A call is let in if its sender is admitted and has room: so many calls, descriptors and bytes that are not
//! answered yet. Where there is no room, a private connection is simply not read further; on a bus, where one
//! connection carries everybody, the call is refused. `Wait` is meant to stay open and has a count of its own, so
//! that a client that waits for many sessions can still call.
//!
//! A call with other arguments than its method has, and one that would set a property, is refused here too: zbus would
//! not say what was wrong.
//!
//! Messages that are no calls are dropped, except answers and the bus's own signals on a bus.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc, watch};
use zbus::DBusError;
use zbus::connection::socket::{ReadHalf, Socket, Split};
use zbus::fdo;
use zbus::message::{Flags, Header, Message, Type};

use super::BusError;
use super::signatures;
use super::socket::{PATIENCE, Reader, Wire, Writer};

/// The largest message that is taken, in bytes. It holds the largest submission several times over.
pub const MESSAGE: usize = 32 << 20;
/// The largest call other than `Submit`.
const SMALL_CALL: usize = 256 << 10;
/// Calls of one sender that are not answered yet, on a private connection. More are not read.
pub const CALLS: usize = 64;
/// The same on a bus, where more are refused: some libraries send hundreds at once.
const CALLS_ON_BUS: usize = 256;
/// Open `Wait` calls of one sender; more are refused.
pub const WAITS: usize = 64;
/// Bytes of calls that are not answered yet, on one connection.
const BYTES: usize = 64 << 20;
/// Descriptors of a sender's calls that are not answered yet. A submission may come with 33.
const DESCRIPTORS: usize = 64;
/// Calls besides `Submit` that do something also where nobody wants their answer.
const EFFECTS: [&str; 9] =
    ["Acknowledge", "Answer", "Cancel", "FollowUp", "Prune", "Reconcile", "Remove", "Steer", "Unsubscribe"];
/// The fixed beginning of every message (specification, "Message Format").
const HEAD: usize = 16;
/// The longest header that is read of a message which is refused for its size.
const FIELDS: usize = 64 << 10;
/// Refusals that wait to be sent; beyond it nothing further is read: a call that is dropped would be waited for.
const REFUSALS: usize = 256;

/// A call by its sender (on a bus) and serial.
type CallKey = (Option<String>, u32);

/// What calls on one connection are not answered yet.
#[derive(Debug)]
pub struct Traffic {
    on_bus: bool,
    inner: Mutex<Open>,
    freed: Notify,
    /// The peer takes signals: it has the answer to its Hello, or began without one.
    greeted: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Open {
    calls: HashMap<CallKey, Call>,
    senders: HashMap<Option<String>, Use>,
    bytes: usize,
}

#[derive(Debug)]
struct Call {
    size: Size,
    /// Dropped when the call is answered.
    kept: Vec<Box<dyn Any + Send>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Size {
    bytes: usize,
    descriptors: usize,
    wait: bool,
}

#[derive(Debug, Default)]
struct Use {
    calls: usize,
    waits: usize,
    descriptors: usize,
}

/// What becomes of a call.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Enter,
    NoRoom,
    Refuse(&'static str),
}

impl Traffic {
    /// For a connection with one peer.
    pub fn private() -> Arc<Self> {
        Arc::new(Traffic::new(false))
    }

    /// For a connection to a bus.
    pub fn on_bus() -> Arc<Self> {
        Arc::new(Traffic::new(true))
    }

    fn new(on_bus: bool) -> Self {
        Traffic { on_bus, inner: Mutex::default(), freed: Notify::new(), greeted: watch::Sender::new(false) }
    }

    /// Comes back when the peer has the answer to its Hello, or has called something else.
    pub async fn greeted(&self) {
        // The sender lives as long as this, so waiting cannot fail.
        let _ = self.greeted.subscribe().wait_for(|greeted| *greeted).await;
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // Nothing that is done under the lock can leave it half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// On a private connection a peer may put anything into `sender`: it does not count.
    fn sender(&self, header: &Header<'_>) -> Option<String> {
        if self.on_bus { header.sender().map(|name| name.to_string()) } else { None }
    }

    fn key(&self, call: &Header<'_>) -> CallKey {
        (self.sender(call), call.primary().serial_num().get())
    }

    /// Lets `call` in if there is room for it.
    fn enter(&self, call: &Header<'_>, size: Size) -> Decision {
        let key = self.key(call);
        let mut open = self.open();
        if open.calls.contains_key(&key) {
            return Decision::Refuse("a call with this serial number is not answered yet");
        }
        let most = if self.on_bus { CALLS_ON_BUS } else { CALLS };
        let usage = open.senders.entry(key.0.clone()).or_default();
        if size.wait && usage.waits >= WAITS {
            return Decision::Refuse("64 calls of Wait are open already; end one of them first");
        }
        let full = !size.wait && usage.calls >= most;
        let crowded = size.descriptors > 0 && usage.descriptors + size.descriptors > DESCRIPTORS;
        if full || crowded {
            return Decision::NoRoom;
        }
        usage.calls += usize::from(!size.wait);
        usage.waits += usize::from(size.wait);
        usage.descriptors += size.descriptors;
        open.bytes += size.bytes;
        open.calls.insert(key, Call { size, kept: Vec::new() });
        drop(open);
        if call.member().is_none_or(|member| member != "Hello") {
            self.greeted.send_replace(true);
        }
        Decision::Enter
    }

    /// Waits until a message of `bytes` may be read: always if nothing else is in.
    async fn room(&self, bytes: usize) {
        loop {
            let freed = self.freed.notified();
            let held = self.open().bytes;
            if held == 0 || held + bytes <= BYTES {
                return;
            }
            freed.await;
        }
    }

    /// The message is the answer to a call.
    pub fn answered(&self, answer: &Header<'_>) {
        let Some(serial) = answer.reply_serial() else { return };
        let sender = if self.on_bus { answer.destination().map(|name| name.to_string()) } else { None };
        self.end(&(sender, serial.get()));
    }

    /// A call that wants no answer is done.
    pub fn done(&self, call: &Header<'_>) {
        self.end(&self.key(call));
    }

    fn end(&self, key: &CallKey) {
        let mut open = self.open();
        let Some(call) = open.calls.remove(key) else { return };
        open.bytes = open.bytes.saturating_sub(call.size.bytes);
        if let Some(usage) = open.senders.get_mut(&key.0) {
            usage.calls -= usize::from(!call.size.wait);
            usage.waits -= usize::from(call.size.wait);
            usage.descriptors -= call.size.descriptors;
            if usage.calls == 0 && usage.waits == 0 {
                open.senders.remove(&key.0);
            }
        }
        drop(open);
        self.freed.notify_waiters();
        self.greeted.send_replace(true);
        // Last, and without the lock: what was kept may do anything when it is dropped.
        drop(call);
    }

    /// Keeps `thing` until `call` is answered, or drops it at once if that has happened.
    pub fn keep(&self, call: &Header<'_>, thing: Box<dyn Any + Send>) {
        if let Some(call) = self.open().calls.get_mut(&self.key(call)) {
            call.kept.push(thing);
        }
    }

    /// Drops everything that is kept: the connection is gone.
    pub fn close(&self) {
        let gone = std::mem::take(&mut *self.open());
        self.freed.notify_waiters();
        drop(gone);
    }

    #[cfg(test)]
    pub fn unanswered(&self) -> usize {
        self.open().calls.len()
    }
}

/// Says who may call.
#[async_trait]
pub trait Doorkeeper: Send + Sync + std::fmt::Debug + 'static {
    /// Admits the caller of `call`, or says why not.
    async fn admit(&self, call: &Header<'_>) -> Result<(), String>;
}

/// How a call was refused.
#[derive(Debug)]
pub enum Refused {
    /// With an error of the D-Bus specification.
    Standard(fdo::Error),
    /// With one of ours.
    Ours(BusError),
}

impl Refused {
    /// The answer to `call`. It holds nothing of the call, which may be large.
    fn answer(&self, call: &Header<'_>) -> zbus::Result<Message> {
        match self {
            Refused::Standard(error) => error.create_reply(call),
            Refused::Ours(error) => error.create_reply(call),
        }
    }
}

impl From<fdo::Error> for Refused {
    fn from(error: fdo::Error) -> Self {
        Refused::Standard(error)
    }
}

impl From<BusError> for Refused {
    fn from(error: BusError) -> Self {
        Refused::Ours(error)
    }
}

/// A socket with a gate, for [`zbus::connection::Builder`].
#[derive(Debug)]
pub struct GatedSocket {
    wire: Arc<Wire>,
    traffic: Arc<Traffic>,
    doorkeeper: Arc<dyn Doorkeeper>,
    descriptors: bool,
    refusals: mpsc::Sender<Message>,
}

impl GatedSocket {
    /// A gate on `stream`. The refusals that come out of the channel are to be sent by [`send_refusals`].
    pub fn new(
        stream: UnixStream,
        traffic: Arc<Traffic>,
        doorkeeper: Arc<dyn Doorkeeper>,
        descriptors: bool,
    ) -> (Self, Arc<Wire>, mpsc::Receiver<Message>) {
        let wire = Wire::new(stream);
        let (refusals, receiver) = mpsc::channel(REFUSALS);
        (GatedSocket { wire: wire.clone(), traffic, doorkeeper, descriptors, refusals }, wire, receiver)
    }
}

impl Socket for GatedSocket {
    type ReadHalf = Gate;
    type WriteHalf = Writer;

    fn split(self) -> Split<Gate, Writer> {
        let gate = Gate {
            reader: Reader::new(self.wire.clone()),
            traffic: self.traffic.clone(),
            doorkeeper: self.doorkeeper,
            descriptors: self.descriptors,
            refusals: self.refusals,
        };
        Split::new(gate, Writer::new(self.wire, self.traffic, self.descriptors, PATIENCE))
    }
}

/// Sends what the gate refuses, until the connection ends.
pub async fn send_refusals(connection: zbus::Connection, mut refusals: mpsc::Receiver<Message>) {
    while let Some(refusal) = refusals.recv().await {
        if connection.send(&refusal).await.is_err() {
            return;
        }
    }
}

/// The reading half of a [`GatedSocket`].
#[derive(Debug)]
pub struct Gate {
    reader: Reader,
    traffic: Arc<Traffic>,
    doorkeeper: Arc<dyn Doorkeeper>,
    descriptors: bool,
    refusals: mpsc::Sender<Message>,
}

impl Gate {
    /// Reads one message, or refuses it for its size (`None`).
    async fn read(&mut self, seq: u64, early: &mut Vec<u8>) -> zbus::Result<Option<Message>> {
        self.reader.drop_ahead();
        while early.len() < HEAD {
            let mut rest = [0; HEAD];
            let have = early.len();
            if !self.reader.read_ahead(&mut rest[have..]).await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            early.extend_from_slice(&rest[have..]);
        }
        let lengths = Lengths::read(early)?;
        if lengths.whole() <= MESSAGE {
            self.traffic.room(lengths.whole()).await;
            return self.reader.receive_message(seq, early, &mut Vec::new()).await.map(Some);
        }
        if lengths.fields > FIELDS || early.len() > HEAD {
            return Err(zbus::Error::ExcessData);
        }
        // The header alone, as a message without a body, tells whom to refuse.
        let header = Lengths { fields: lengths.fields, body: 0 }.whole();
        early.resize(header, 0);
        if !self.reader.read_ahead(&mut early[HEAD..]).await? {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        early[4..8].fill(0);
        let bare = self.reader.receive_message(seq, early, &mut Vec::new()).await?;
        self.reader.drop_ahead();
        self.reader.skip(lengths.body).await?;
        let why = format!("the message is {} bytes long; {MESSAGE} are taken", lengths.whole());
        if bare.message_type() == Type::MethodCall && self.doorkeeper.admit(&bare.header()).await.is_ok() {
            self.refuse(&bare, fdo::Error::LimitsExceeded(why).into()).await;
        }
        Ok(None)
    }

    /// Has the refusal sent, and waits for its turn: whoever writes gives up on a peer that takes nothing.
    async fn refuse(&self, call: &Message, error: Refused) {
        let header = call.header();
        if !wants_answer(&header) {
            return;
        }
        match error.answer(&header) {
            // Nobody sends any more once the connection has ended.
            Ok(answer) => drop(self.refusals.send(answer).await),
            Err(error) => tracing::debug!(%error, "a refused call stays unanswered"),
        }
    }

    /// Whether zbus may see the message; waits for room on a private connection.
    async fn pass(&self, message: &Message) -> Result<bool, Refused> {
        let header = message.header();
        match message.message_type() {
            Type::MethodCall => {}
            Type::MethodReturn | Type::Error => return Ok(self.traffic.on_bus),
            Type::Signal => return Ok(self.traffic.on_bus && from_bus(&header)),
        }
        self.doorkeeper.admit(&header).await.map_err(fdo::Error::AccessDenied)?;
        signatures::check(&header)?;
        let ours = header.interface().is_some_and(|name| name.starts_with("org.airouter."));
        let member = header.member().map_or("", |name| name.as_str());
        let submit = ours && member == "Submit";
        let effect = submit || (ours && EFFECTS.contains(&member));
        if !effect && !wants_answer(&header) {
            // A question whose answer nobody wants has no effect, and nothing would say when it is done.
            return Ok(false);
        }
        let size = Size {
            bytes: message.data().len(),
            descriptors: message.data().fds().len(),
            wait: ours && member == "Wait",
        };
        if !submit && (size.bytes > SMALL_CALL || size.descriptors > 0) {
            let why = format!("a call of {member} may have {SMALL_CALL} bytes and no descriptors");
            return Err(fdo::Error::LimitsExceeded(why).into());
        }
        if size.descriptors > DESCRIPTORS {
            return Err(
                fdo::Error::LimitsExceeded(format!("a call may have {DESCRIPTORS} descriptors")).into()
            );
        }
        loop {
            let freed = self.traffic.freed.notified();
            match self.traffic.enter(&header, size) {
                Decision::Enter => return Ok(true),
                Decision::Refuse(why) => return Err(fdo::Error::LimitsExceeded(why.into()).into()),
                Decision::NoRoom if self.traffic.on_bus => {
                    let why = "too many of your calls are not answered yet; send fewer at once";
                    return Err(fdo::Error::LimitsExceeded(why.into()).into());
                }
                Decision::NoRoom => freed.await,
            }
        }
    }
}

fn wants_answer(call: &Header<'_>) -> bool {
    !call.primary().flags().contains(Flags::NO_REPLY_EXPECTED)
}

fn from_bus(header: &Header<'_>) -> bool {
    header.sender().is_some_and(|name| name.as_str() == "org.freedesktop.DBus")
}

/// The lengths in a message's fixed beginning.
#[derive(Debug, Clone, Copy)]
struct Lengths {
    fields: usize,
    body: usize,
}

impl Lengths {
    fn read(head: &[u8]) -> zbus::Result<Self> {
        let number = |at: usize| -> Option<usize> {
            let bytes: [u8; 4] = head.get(at..at + 4)?.try_into().ok()?;
            let number = match head.first()? {
                b'l' => u32::from_le_bytes(bytes),
                b'B' => u32::from_be_bytes(bytes),
                _ => return None,
            };
            usize::try_from(number).ok()
        };
        match (number(4), number(12)) {
            (Some(body), Some(fields)) => Ok(Lengths { fields, body }),
            _ => Err(zbus::Error::IncorrectEndian),
        }
    }

    fn whole(self) -> usize {
        (HEAD + self.fields).div_ceil(8) * 8 + self.body
    }
}

#[async_trait]
impl ReadHalf for Gate {
    async fn receive_message(
        &mut self,
        seq: u64,
        early: &mut Vec<u8>,
        early_descriptors: &mut Vec<OwnedFd>,
    ) -> zbus::Result<Message> {
        // A bus has nothing to send descriptors with before the first message.
        early_descriptors.clear();
        loop {
            let message = match self.read(seq, early).await {
                Ok(Some(message)) => message,
                Ok(None) => continue,
                Err(error) => {
                    self.traffic.close();
                    return Err(error);
                }
            };
            match self.pass(&message).await {
                Ok(true) => return Ok(message),
                Ok(false) => {}
                Err(error) => self.refuse(&message, error).await,
            }
        }
    }

    /// Only for zbus's own handshake with a bus.
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        self.reader.recvmsg(buffer).await
    }

    fn can_pass_unix_fd(&self) -> bool {
        self.descriptors
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn call(sender: &str) -> Message {
        Message::method_call("/", "Submit").sender(sender).build(&()).unwrap()
    }

    fn answer(call: &Message) -> Message {
        Message::method_return(&call.header()).build(&()).unwrap()
    }

    const ONE: Size = Size { bytes: 100, descriptors: 1, wait: false };

    #[test]
    fn a_call_is_in_until_its_answer() {
        struct Tell(Arc<AtomicBool>);
        impl Drop for Tell {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        for end in [Traffic::answered as fn(&Traffic, &Header<'_>), |t, _| t.close()] {
            let traffic = Traffic::private();
            let call = call(":1.1");
            assert_eq!(traffic.enter(&call.header(), ONE), Decision::Enter);
            assert_eq!(traffic.unanswered(), 1);
            let dropped = Arc::new(AtomicBool::new(false));
            traffic.keep(&call.header(), Box::new(Tell(dropped.clone())));
            assert!(!dropped.load(Ordering::Relaxed));
            end(&traffic, &answer(&call).header());
            assert_eq!(traffic.unanswered(), 0);
            assert!(dropped.load(Ordering::Relaxed));
            // Too late to keep anything: it goes at once.
            dropped.store(false, Ordering::Relaxed);
            traffic.keep(&call.header(), Box::new(Tell(dropped.clone())));
            assert!(dropped.load(Ordering::Relaxed));
        }
    }

    #[test]
    fn senders_on_a_bus_have_room_each_and_the_sender_field_does_not_count_elsewhere() {
        let bus = Traffic::on_bus();
        let calls: Vec<_> = (0..CALLS_ON_BUS).map(|_| call(":1.1")).collect();
        let size = Size { descriptors: 0, ..ONE };
        for call in &calls {
            assert_eq!(bus.enter(&call.header(), size), Decision::Enter);
        }
        assert_eq!(bus.enter(&call(":1.1").header(), size), Decision::NoRoom);
        assert_eq!(bus.enter(&call(":1.2").header(), size), Decision::Enter);
        bus.answered(&answer(&calls[0]).header());
        assert_eq!(bus.enter(&call(":1.1").header(), size), Decision::Enter);

        let private = Traffic::private();
        for n in 0..CALLS {
            assert_eq!(private.enter(&call(&format!(":1.{n}")).header(), size), Decision::Enter);
        }
        assert_eq!(private.enter(&call(":1.999").header(), size), Decision::NoRoom);
    }

    #[test]
    fn descriptors_have_a_bound() {
        let traffic = Traffic::private();
        let many = Size { descriptors: DESCRIPTORS - 1, ..ONE };
        let first = call(":1.1");
        assert_eq!(traffic.enter(&first.header(), many), Decision::Enter);
        assert_eq!(traffic.enter(&call(":1.1").header(), ONE), Decision::Enter);
        assert_eq!(traffic.enter(&call(":1.1").header(), ONE), Decision::NoRoom);
        traffic.done(&first.header());
        assert_eq!(traffic.enter(&call(":1.1").header(), ONE), Decision::Enter);
    }

    #[tokio::test]
    async fn bytes_have_a_bound_and_one_large_message_always_fits() {
        let traffic = Traffic::private();
        traffic.room(BYTES * 2).await;
        let large = call(":1.1");
        traffic.enter(&large.header(), Size { bytes: BYTES, ..ONE });
        let waiting = {
            let traffic = traffic.clone();
            tokio::spawn(async move { traffic.room(1).await })
        };
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        traffic.answered(&answer(&large).header());
        waiting.await.unwrap();
    }

    #[test]
    fn lengths_are_read_in_both_orders() {
        let little = Lengths::read(b"l\x01\0\x01\x05\0\0\0\x01\0\0\0\x09\0\0\0").unwrap();
        let big = Lengths::read(b"B\x01\0\x01\0\0\0\x05\0\0\0\x01\0\0\0\x09").unwrap();
        assert_eq!((little.whole(), big.whole()), (32 + 5, 32 + 5));
        assert!(Lengths::read(b"x\x01\0\x01\0\0\0\x05\0\0\0\x01\0\0\0\x09").is_err());
    }
}
