//! Telling somebody that an answer takes long.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long an answer may take before somebody is told.
const SOON: Duration = Duration::from_secs(5);

/// Who is told, once, that the service takes long, with its process where that is known; by default nobody. Clones share
/// that it was told.
#[derive(Clone, Default)]
pub(super) struct Patience {
    tell: Option<Arc<Tell>>,
}

struct Tell {
    to: Box<dyn Fn(Option<u32>) + Send + Sync>,
    told: AtomicBool,
}

impl Patience {
    pub(super) fn telling(to: impl Fn(Option<u32>) + Send + Sync + 'static) -> Patience {
        Patience { tell: Some(Arc::new(Tell { to: Box::new(to), told: AtomicBool::new(false) })) }
    }

    /// What `answer` gives, however long it takes.
    pub(super) async fn with<F: Future>(&self, pid: Option<u32>, answer: F) -> F::Output {
        let Some(tell) = &self.tell else { return answer.await };
        let mut answer = std::pin::pin!(answer);
        match tokio::time::timeout(SOON, &mut answer).await {
            Ok(output) => output,
            Err(_) => {
                if !tell.told.swap(true, Ordering::Relaxed) {
                    (tell.to)(pid);
                }
                answer.await
            }
        }
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Patience").field("tells", &self.tell.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slowness_is_told_once_and_the_answer_is_still_given() {
        let told: Arc<Mutex<Vec<Option<u32>>>> = Arc::default();
        let list = told.clone();
        let patience = Patience::telling(move |pid| list.lock().unwrap().push(pid));
        let after = |seconds| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            seconds
        };
        assert_eq!(patience.with(Some(1), after(4)).await, 4);
        assert_eq!(*told.lock().unwrap(), []);
        assert_eq!(patience.with(Some(2), after(60)).await, 60);
        assert_eq!(patience.clone().with(Some(3), after(60)).await, 60);
        assert_eq!(*told.lock().unwrap(), [Some(2)]);
        assert_eq!(Patience::default().with(None, after(60)).await, 60);
    }
}
