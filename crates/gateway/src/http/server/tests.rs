//! Limits of connections, with a service that has nothing to say.

use std::sync::atomic::AtomicU64;

use super::*;

/// Answers `/` at once, `/later` once `parts` is 1 or more, and streams the number of parts.
#[derive(Clone, Default)]
struct Numbers(Arc<AtomicU64>);

impl Service for Numbers {
    fn answer(&mut self, request: &Request<'_>, _: Instant, _: Instant) -> Answer {
        match request.path {
            "/later" if self.0.load(Ordering::SeqCst) == 0 => Answer::Later,
            "/stream" => {
                let body = Body::Own(Vec::new());
                Answer::Stream(Response { status: "200 OK", kind: "text/event-stream", fields: String::new(), body })
            }
            _ => Answer::text("200 OK", "ok\n"),
        }
    }

    fn next(&mut self, seen: u64, _: Instant) -> Option<(u64, Arc<[u8]>)> {
        let newest = self.0.load(Ordering::SeqCst);
        (newest > seen).then(|| (newest, format!("part {newest}\n{}", "x".repeat(1 << 20)).into_bytes().into()))
    }
}

fn started(service: &Numbers) -> (Server, Waker) {
    let waker = Waker::new().unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    (Server::start("metrics", address, None, waker.clone(), service.clone()).unwrap(), waker)
}

fn connected(server: &Server, path: &str) -> TcpStream {
    let mut client = TcpStream::connect(server.address()).unwrap();
    client.set_read_timeout(Some(PATIENCE * 4)).unwrap();
    client.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
    client
}

/// What arrives up to and including `end`.
fn until(client: &mut TcpStream, end: &str) -> String {
    let mut all = Vec::new();
    let mut byte = [0];
    while !all.ends_with(end.as_bytes()) && client.read(&mut byte).is_ok_and(|n| n == 1) {
        all.push(byte[0]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

fn text(client: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn idle_connections_do_not_keep_a_request_out() {
    let (server, _) = started(&Numbers::default());
    drop(TcpStream::connect(server.address()).unwrap());
    let idle: Vec<TcpStream> = (0..130)
        .map(|_| {
            let mut client = TcpStream::connect(server.address()).unwrap();
            client.write_all(b"GET / HTTP/1.0\r\n").unwrap();
            client
        })
        .collect();
    let started = Instant::now();
    assert!(text(&mut connected(&server, "/")).ends_with("\r\n\r\nok\n"));
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
    let mut long = TcpStream::connect(server.address()).unwrap();
    long.write_all(&[b'x'; MAX_REQUEST]).unwrap();
    assert!(text(&mut long).starts_with("HTTP/1.1 431"));
    drop(idle);
    let address = server.address();
    drop(server);
    assert!(TcpStream::connect(address).is_err(), "the listener is closed");
}

#[test]
fn a_connection_has_a_limit_of_time_in_all() {
    let (server, _) = started(&Numbers::default());
    let mut slow = TcpStream::connect(server.address()).unwrap();
    let started = Instant::now();
    // A byte now and then does not prolong it.
    while slow.write_all(b"x").is_ok() && started.elapsed() < PATIENCE * 3 {
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(started.elapsed() < PATIENCE * 2, "{:?}", started.elapsed());
}

#[test]
fn a_request_waits_for_its_data() {
    let service = Numbers::default();
    let (server, waker) = started(&service);
    let mut client = connected(&server, "/later");
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(client.read(&mut [0]).is_err());
    service.0.store(1, Ordering::SeqCst);
    waker.wake();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(text(&mut client).ends_with("ok\n"));
    service.0.store(0, Ordering::SeqCst);
    assert_eq!(text(&mut connected(&server, "/later")), "", "closed without a response in the end");
}

#[test]
fn streams_get_each_part_and_slow_ones_are_closed() {
    let service = Numbers::default();
    let (server, waker) = started(&service);
    let (mut reads, mut slow) = (connected(&server, "/stream"), connected(&server, "/stream"));
    until(&mut reads, "\r\n\r\n");
    let begun = Instant::now();
    let mut parts = 0;
    while begun.elapsed() < PATIENCE * 2 {
        parts += 1;
        service.0.store(parts, Ordering::SeqCst);
        waker.wake();
        assert_eq!(until(&mut reads, &format!("part {parts}\n")).lines().last(), Some(&*format!("part {parts}")));
        reads.read_exact(&mut vec![0; 1 << 20]).unwrap();
        std::thread::sleep(Duration::from_millis(250));
    }
    // The kernel kept some parts for it. An open connection would make this read time out.
    let mut kept = Vec::new();
    let end = slow.read_to_end(&mut kept);
    assert!(!end.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock), "still open");
    assert!(kept.len() < parts as usize >> 1 << 20, "{} of {parts} parts", kept.len() >> 20);
}

#[test]
fn streams_have_slots_of_their_own() {
    let service = Numbers::default();
    let (server, _) = started(&service);
    let mut streams: Vec<TcpStream> = (0..STREAMS_MAX).map(|_| connected(&server, "/stream")).collect();
    for stream in &mut streams {
        assert!(until(stream, "\r\n\r\n").starts_with("HTTP/1.1 200"));
    }
    assert!(text(&mut connected(&server, "/stream")).starts_with("HTTP/1.1 503"));
    assert!(text(&mut connected(&server, "/")).ends_with("ok\n"));
    // A slot is free again once its client has reset the connection.
    socket2::SockRef::from(&streams[0]).set_linger(Some(Duration::ZERO)).unwrap();
    drop(streams.remove(0));
    let started = Instant::now();
    while !until(&mut connected(&server, "/stream"), "\r\n\r\n").starts_with("HTTP/1.1 200") {
        assert!(started.elapsed() < PATIENCE, "the slot stays taken");
    }
}
