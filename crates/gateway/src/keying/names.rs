//! Resolution of host names outside of the control thread.
//!
//! The resolver of the host may block, so a few threads call it, each for one name at a time.
//! Requests wait in a bounded queue; requests beyond the bound fail at once, and the caller repeats
//! them.

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use ike::hosts::ResolveError;

/// Names that are resolved at the same time: one that times out does not hold up the others.
const THREADS: usize = 4;
/// Requests that wait, of at most 253 bytes each.
const REQUESTS_MAX: usize = 4096;

/// User of a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Client {
    /// The endpoint of IKE.
    Ike,
    /// The key service of PSP.
    Psp,
}

/// An answer: client, number of its request, addresses or the reason that there are none.
pub(super) type Found = (Client, u64, Result<Vec<IpAddr>, ResolveError>);

/// Requests to the resolver, and its answers.
pub(crate) struct Names {
    submit: Box<dyn Fn(Client, u64, String) -> Result<(), ResolveError>>,
    found: Receiver<Found>,
}

impl Names {
    /// Starts the threads. `wake` is called after each answer.
    ///
    /// # Errors
    /// The operating system has no thread left.
    pub(crate) fn spawn(
        resolve: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (requests, waiting) = sync_channel(REQUESTS_MAX);
        let (answers, found) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let (resolve, wake) = (Arc::new(resolve), Arc::new(wake));
        for _ in 0..THREADS {
            let (waiting, answers) = (Arc::clone(&waiting), answers.clone());
            let (resolve, wake) = (Arc::clone(&resolve), Arc::clone(&wake));
            std::thread::Builder::new()
                .name("weir-names".into())
                .spawn(move || serve(&waiting, &answers, &*resolve, &*wake))?;
        }
        let submit = move |client, number, host| {
            let sent = requests.try_send((client, number, host));
            sent.map_err(|_| ResolveError::Busy)
        };
        Ok(Self { submit: Box::new(submit), found })
    }

    /// No threads: `resolve` does not block, and answers at once.
    pub(crate) fn immediate(resolve: impl Fn(&str) -> Result<Vec<IpAddr>, ResolveError> + 'static) -> Self {
        let (answers, found) = channel();
        let submit = move |client, number, host: String| {
            answers.send((client, number, resolve(&host))).map_err(|_| ResolveError::Busy)
        };
        Self { submit: Box::new(submit), found }
    }

    /// Requests the addresses of a host.
    ///
    /// # Errors
    /// Too many requests wait already.
    pub(super) fn find(&self, client: Client, number: u64, host: String) -> Result<(), ResolveError> {
        (self.submit)(client, number, host)
    }

    /// Answers since the last call.
    pub(super) fn found(&self) -> impl Iterator<Item = Found> {
        self.found.try_iter()
    }
}

/// Reason of the host's resolver, or of the helper process that calls it.
fn resolve_error(error: io::Error) -> ResolveError {
    match error.downcast::<ResolveError>() {
        Ok(error) => error,
        Err(error) => ResolveError::Resolver(error.to_string()),
    }
}

/// Life of a thread.
fn serve(
    waiting: &Mutex<Receiver<(Client, u64, String)>>,
    answers: &Sender<Found>,
    resolve: &dyn Fn(&str) -> io::Result<Vec<IpAddr>>,
    wake: &dyn Fn(),
) {
    loop {
        // The lock is held while this thread waits for a request, and not while it resolves.
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((client, number, host)) = next else { return };
        if answers.send((client, number, resolve(&host).map_err(resolve_error))).is_err() {
            return;
        }
        wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, sync_channel};
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_name_that_hangs_does_not_hold_up_the_others() {
        let (release, hanging) = sync_channel::<()>(1);
        let hanging = Mutex::new(hanging);
        let resolve = move |name: &str| match name {
            "hangs.example" => {
                let waited = hanging.lock().unwrap().recv_timeout(PATIENCE);
                assert!(!matches!(waited, Err(RecvTimeoutError::Timeout)), "the others waited for it");
                Ok(vec![IpAddr::from([192, 0, 2, 9])])
            }
            "gw.example" => Ok(vec![IpAddr::from([192, 0, 2, 2])]),
            _ => Err(io::Error::other("no such host")),
        };
        let (woken, wakes) = channel();
        let woken = Mutex::new(woken);
        let names = Names::spawn(resolve, move || woken.lock().unwrap().send(()).unwrap_or_default()).unwrap();
        names.find(Client::Ike, 1, "hangs.example".into()).unwrap();
        names.find(Client::Psp, 2, "gw.example".into()).unwrap();
        names.find(Client::Ike, 3, "x".into()).unwrap();
        let mut found = Vec::new();
        for _ in 0..2 {
            wakes.recv_timeout(PATIENCE).unwrap();
            found.extend(names.found());
        }
        found.sort_by_key(|(_, number, _)| *number);
        let wanted = [
            (Client::Psp, 2, Ok(vec![IpAddr::from([192, 0, 2, 2])])),
            (Client::Ike, 3, Err(ResolveError::Resolver("no such host".to_owned()))),
        ];
        assert_eq!(found, wanted);
        release.send(()).unwrap();
        wakes.recv_timeout(PATIENCE).unwrap();
        assert_eq!(names.found().map(|(_, number, _)| number).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn requests_are_bounded() {
        let (_release, hanging) = sync_channel::<()>(1);
        let hanging = Mutex::new(hanging);
        let names =
            Names::spawn(move |_| Ok(hanging.lock().unwrap().recv().map(|()| Vec::new()).unwrap_or_default()), || ());
        let names = names.unwrap();
        let accepted =
            (0..2 * REQUESTS_MAX as u64).take_while(|n| names.find(Client::Ike, *n, "gw".into()).is_ok()).count();
        assert!((REQUESTS_MAX..=REQUESTS_MAX + THREADS).contains(&accepted), "{accepted}");
    }
}
