//! Object files that the build script shortens.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "../build/shorten.rs"]
mod shorten;

use std::path::{Path, PathBuf};
use std::process::Command;

use shorten::shorten;

/// Four functions in one section, with relocations to data, and a table of the first.
const OBJECT: &str = "
    .text
    .globl first, second, third, fourth
first:
    mov table(%rip), %eax
    ret
second:
    call 1f
    add $3, %eax
    ret
1:  mov 4+table(%rip), %eax
    ret
third:
    mov 8+table(%rip), %eax
2:  ret
fourth:
    call *pointer(%rip)
    ret
    .section .rodata
table: .long 7, 20, 1000
    .data
pointer: .quad first
    .section .note.GNU-stack
";
/// The exit status is that of the two functions that are left and of another third one.
const PROGRAM: &str = "
int first(void), second(void);
int third(void) { return 100; }
int fourth(void) { return 0; }
int main(void) { return first() + second() + third(); }
";

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn compile(folder: &Path, arguments: &[&str]) {
    let status = Command::new("cc").current_dir(folder).args(arguments).status().unwrap();
    assert!(status.success(), "cc {arguments:?}");
}

fn assembled(folder: &Path, text: &str) -> Vec<u8> {
    std::fs::write(folder.join("whole.s"), text).unwrap();
    compile(folder, &["-c", "whole.s", "-o", "whole.o"]);
    std::fs::read(folder.join("whole.o")).unwrap()
}

fn is_late(name: &str) -> bool {
    matches!(name, "third" | "fourth")
}

#[test]
fn what_is_left_runs_and_what_is_cut_can_be_replaced() {
    let folder = folder("shorten");
    let whole = assembled(&folder, OBJECT);
    let shorter = shorten(&whole, is_late).unwrap();
    assert_eq!((&*shorter.kept, &shorter.cut[..]), ("second", &["third".to_owned(), "fourth".to_owned()][..]));
    std::fs::write(folder.join("short.o"), shorter.object).unwrap();
    std::fs::write(folder.join("main.c"), PROGRAM).unwrap();
    compile(&folder, &["main.c", "short.o", "-o", "program"]);
    assert_eq!(Command::new(folder.join("program")).status().unwrap().code(), Some(7 + 23 + 100));
    // The same program does not link with the whole file, which defines the functions as well.
    assert!(!Command::new("cc").current_dir(&folder).args(["main.c", "whole.o"]).output().unwrap().status.success());
}

#[test]
fn a_file_stays_whole_where_a_cut_would_break_it() {
    let folder = folder("whole");
    let whole = assembled(&folder, OBJECT);
    assert!(shorten(&whole, |_| false).is_none(), "nothing is unused");
    assert!(shorten(&whole, |name| name == "third").is_none(), "not at the end");
    assert!(shorten(&whole, |_| true).is_none(), "nothing would be left");
    for (change, by, why) in [
        ("call 1f", "call 2f", "a call"),
        ("call 1f", "jne 2f", "a short jump"),
        ("call 1f", "lea 2f(%rip), %rax", "an address"),
        ("pointer: .quad first", "pointer: .quad 2b", "a table"),
    ] {
        let whole = assembled(&folder, &OBJECT.replace(change, by));
        assert!(shorten(&whole, is_late).is_none(), "{why}");
    }
}

#[test]
fn a_damaged_file_stays_whole() {
    let whole = assembled(&folder("damaged"), OBJECT);
    assert!(shorten(b"no object", is_late).is_none());
    for len in 0..whole.len() {
        assert!(shorten(&whole[..len], is_late).is_none_or(|shorter| shorter.object.len() == len));
    }
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        let _ = shorten(&damaged, is_late);
    }
}
