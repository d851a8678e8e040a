//! Many IKE SAs at once: benchmarks, so they run only by name.

use super::*;

/// Resident memory in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or_default() * 4096
}

/// `cargo test --release -p weir-ike -- --ignored --nocapture ten_thousand`.
#[test]
#[ignore = "takes long and prints figures"]
fn ten_thousand_ike_sas() {
    let count = 10_000;
    let settings = Settings {
        cookie_threshold: 2 * count,
        cookie_threshold_per_address: 2 * count,
        block_threshold: 2 * count,
        ..Settings::default()
    };
    let mut net = Net::with_settings(60, 2, &settings);
    let client = |number: usize| {
        let mut one = connection(1, 2);
        signatures(&mut one);
        one.name = format!("c{number}");
        one.local[0].id = IdPattern::Like(id(&format!("c{number}.test")));
        one
    };
    let mut gateway = connection(2, 1);
    signatures(&mut gateway);
    gateway.remote[0].id = IdPattern::Any;
    net.load(0, (0..count).map(client).collect());
    net.load(1, vec![gateway]);
    keys(&mut net);
    let public = answers::ed25519(1).public().clone();
    let trusted = (0..count).map(|number| (id(&format!("c{number}.test")), public.clone()));
    net.hosts[1].credentials.trusted.extend(trusted);
    let (before, start) = (resident(), Instant::now());
    for number in 0..count {
        let now = net.now;
        net.hosts[0].endpoint.initiate(now, &format!("c{number}"), Some("net"), number as u64).expect("starts");
        net.run(Duration::from_millis(1));
        for host in &mut net.hosts {
            host.events.clear();
        }
    }
    net.run(SECOND);
    let took = start.elapsed();
    assert!(net.hosts.iter().all(|host| host.up().len() == count && host.live().count() == count));
    net.hosts.iter_mut().for_each(|host| host.plane.clear());
    let each = (resident() - before) / (2 * count);
    println!(
        "{count} handshakes, both ends: {took:?}, {:.0}/s; {each} bytes of memory each",
        count as f64 / took.as_secs_f64()
    );
}
