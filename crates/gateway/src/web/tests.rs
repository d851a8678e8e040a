//! Routes, access and rendering, without a gateway.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::access::{FILE, token_path};
use super::page::{self, ROWS_MAX, Shell};
use super::pages::value;
use super::*;
use crate::http::Token;
use crate::rates::Rates;
use crate::status::Status;
use crate::status::example::status;

/// A folder of this test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-web-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn token(folder: &Path) -> io::Result<Zeroizing<String>> {
    Token::open(&token_path(folder)).map(|token| Zeroizing::new(token.text().to_owned()))
}

fn started(folder: &Folder, hosts: &[&str]) -> Web {
    let gateway = Gateway {
        // A free port: the configuration refuses 0.
        web: Some("127.0.0.1:0".parse().unwrap()),
        web_hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        state_dir: folder.0.clone(),
        ..Gateway::default()
    };
    Web::start(Instant::now(), &gateway).unwrap().unwrap()
}

fn ask(web: &Web, request: &str) -> String {
    let mut client = TcpStream::connect(web.address()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = client.read_to_string(&mut answer);
    answer
}

fn get(web: &Web, path: &str, fields: &str) -> String {
    ask(web, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"))
}

fn code(answer: &str) -> &str {
    answer.get(9..12).unwrap_or(answer)
}

#[test]
fn the_token_is_made_once_and_for_its_owner_alone() {
    let folder = Folder::new("token");
    let first = token(&folder.0).unwrap();
    assert_eq!((first.len(), &token(&folder.0).unwrap()), (43, &first));
    let path = folder.0.join(FILE);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1, "nothing else is left");
    let refused = |why: &str| {
        let error = token(&folder.0).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(FILE), "{error}");
        assert!(!error.contains(&*first));
    };
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    refused("mode 640");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    for text in ["", "short", "with a space in it, and more than 32 characters", &"x".repeat(129)] {
        std::fs::write(&path, text).unwrap();
        refused("not a token");
    }
    std::fs::write(&path, "x".repeat(32)).unwrap();
    assert_eq!(crate::http::token::read(&path).unwrap().as_str(), "x".repeat(32));
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
    assert!(token(&folder.0).is_err(), "links are not followed");
}

#[test]
fn nothing_is_shown_without_the_token_or_under_another_name() {
    let folder = Folder::new("access");
    let web = started(&folder, &["gw.example"]);
    let token = token(&folder.0).unwrap();
    let bearer = format!("Authorization: Bearer {}\r\n", *token);
    for path in ["/", "/status.json", "/events", "/connection?name=site", "/nothing"] {
        for fields in
            ["", "Authorization: Bearer wrong\r\n", "Cookie: weir-0=wrong\r\n", &bearer.replace("Bearer", "Basic")]
        {
            let answer = get(&web, path, fields);
            assert_eq!(code(&answer), "401", "{path} {fields}");
            assert!(
                !answer.contains(&**token) && answer.contains("Content-Security-Policy: default-src 'none';"),
                "{answer}"
            );
        }
    }
    assert_eq!(code(&get(&web, "/nothing", &bearer)), "404");
    for host in [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil",
        "[::1",
        "[::1]x",
        "",
        "gw.example:80:80",
        "10.0.0.1",
    ] {
        let answer = ask(&web, &format!("GET /nothing HTTP/1.1\r\nHost: {host}\r\n{bearer}\r\n"));
        assert_eq!(code(&answer), "421", "{host}");
    }
    assert_eq!(code(&ask(&web, &format!("GET /nothing HTTP/1.0\r\n{bearer}\r\n"))), "421");
    assert_eq!(code(&get(&web, "/nothing", &format!("Host: localhost\r\n{bearer}"))), "421", "two hosts");
    for host in ["127.0.0.1:9791", "localhost", "LOCALHOST:1", "[::1]:9791", "127.1.2.3", "GW.example:443"] {
        let answer = ask(&web, &format!("GET /nothing HTTP/1.1\r\nHost: {host}\r\n{bearer}\r\n"));
        assert_eq!(code(&answer), "404", "{host}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let answer = ask(&web, &format!("{method} / HTTP/1.1\r\nHost: localhost\r\n{bearer}\r\n"));
        assert_eq!(code(&answer), "405", "{method}");
        assert!(!answer.to_lowercase().contains("access-control"), "{answer}");
    }
}

#[test]
fn a_login_gives_a_cookie_that_scripts_and_other_sites_cannot_use() {
    let folder = Folder::new("login");
    let web = started(&folder, &[]);
    let token = token(&folder.0).unwrap();
    assert_eq!(code(&get(&web, "/login?token=wrong", "")), "401");
    assert!(get(&web, "/login?token=wrong", "").contains("This token is wrong."));
    assert!(!get(&web, "/login", "").contains("This token is wrong."));
    let answer = get(&web, &format!("/login?token={}", *token), "");
    assert_eq!(code(&answer), "303");
    let set = answer.lines().find_map(|line| line.strip_prefix("Set-Cookie: ")).unwrap();
    assert!(set.ends_with("; Path=/; HttpOnly; SameSite=Strict") && answer.contains("Location: /\r\n"), "{answer}");
    let cookie = set.split(';').next().unwrap();
    assert_eq!(code(&get(&web, "/nothing", &format!("Cookie: other=1; {cookie}\r\n"))), "404");
    assert_eq!(code(&get(&web, "/nothing", &format!("Cookie: {cookie}x\r\n"))), "401");
}

#[test]
fn a_request_asks_for_a_view_and_does_not_wait_for_ever() {
    let folder = Folder::new("view");
    let web = started(&folder, &[]);
    assert!(!web.is_due(Instant::now()), "there is no viewer");
    let bearer = format!("Authorization: Bearer {}\r\n", *token(&folder.0).unwrap());
    let answer = get(&web, "/status.json", &bearer);
    assert_eq!(code(&answer), "503", "nothing was gathered: {answer}");
    let now = Instant::now();
    assert!(web.is_due(now));
    assert!(!web.is_due(now + INTEREST), "the viewer is gone");
}

fn rendered(status: &Status) -> page::Parts {
    let lines = page::ordered(status);
    let mut rates = Rates::default();
    rates.observe(status, &lines);
    page::parts(status, &lines, &rates, &History::default())
}

fn data(event: Vec<u8>) -> serde_json::Value {
    let event = String::from_utf8(event).unwrap();
    let lines: Vec<&str> = event.split_terminator('\n').collect();
    assert!(lines.len() == 4 && lines[0] == "id: 7" && lines[1] == "event: page" && lines[3].is_empty(), "{event}");
    serde_json::from_str(lines[2].strip_prefix("data: ").unwrap()).unwrap()
}

#[test]
fn an_event_has_what_changed() {
    let mut status = status();
    let before = rendered(&status);
    let all = data(page::event(7, &before, None));
    assert_eq!(all["order"].as_array().unwrap().len(), 3);
    assert_eq!((all["rows"].as_object().unwrap().len(), all["parts"].as_object().unwrap().len()), (3, 6));
    let same = data(page::event(7, &rendered(&status), Some(&before)));
    assert_eq!(same, serde_json::json!({"parts": {}, "rows": {}, "order": null}));
    status.connections[2].ike_sas[0].drops += 1;
    status.connections.remove(0);
    let less = data(page::event(7, &rendered(&status), Some(&before)));
    assert_eq!(less["order"], serde_json::json!(["c:lake:", "c:site:7"]));
    assert_eq!(less["rows"].as_object().unwrap().keys().collect::<Vec<_>>(), ["c:site:7"]);
}

#[test]
fn names_of_peers_cannot_become_markup() {
    let mut status = status();
    let site = &mut status.connections[2];
    site.name = "<script>alert('1')</script>\"&".into();
    site.ike_sas[0].remote_id = "\u{1b}<img src=x onerror=alert(1)>".into();
    site.ike_sas[0].connection = site.name.clone();
    let name = site.name.clone();
    let shell = Shell::new("<b>host</b>");
    let page = shell.overview(&rendered(&status));
    let connection = shell.page(&name, &page::connection(&status, &name).unwrap());
    for html in [&page, &connection] {
        for part in ["<script>alert", "<img", "<b>host", "\u{1b}", "{{"] {
            assert!(!html.contains(part), "{part}\n{html}");
        }
    }
    assert!(page.contains("/connection?name=%3Cscript%3Ealert%28%271%27%29%3C%2Fscript%3E%22%26"), "{page}");
    assert_eq!(value("a=1&name=%3Cscript%3E+x", "name").as_deref(), Some("<script> x"));
    assert_eq!((value("name=%f", "name"), value("name=%ff", "name"), value("name", "name")), (None, None, None));
}

#[test]
fn connections_that_need_attention_come_first_and_rows_are_bounded() {
    let mut status = status();
    let names = |status: &Status| page::ordered(status).iter().map(|line| line.name().to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&status), ["lake", "a-long-name-of-an-sa", "site"]);
    let site = status.connections[2].clone();
    status.connections.extend((0..ROWS_MAX).map(|number| {
        let mut connection = site.clone();
        connection.name = format!("site-{number}");
        connection
    }));
    let parts = rendered(&status);
    assert_eq!(parts.rows.len(), ROWS_MAX);
    let page = Shell::new("sun").overview(&parts);
    assert!(page.contains("and 3 more: weir status") && page.len() < 3 << 20, "{}", page.len());
}
