//! The source of the kernel: nothing is indexed by what is secret. And its compilation for CUDA,
//! with the library that WEIR_NVRTC names (`pip install nvidia-cuda-nvrtc-cu12`).

use weir_gpu::KERNEL_SOURCE;

/// Names that an index may contain: loop counters, positions, sizes, and public words of the
/// descriptor.
const PUBLIC: &[&str] = &[
    "i",
    "j",
    "turn",
    "round",
    "rounds",
    "power",
    "step",
    "packet",
    "block_at",
    "data",
    "tags",
    "WORK_GROUP",
    "LOCAL_ITEM",
    "KEY_ROUNDS",
    "KEY_POWERS",
    "KEY_WORDS",
    "DESCRIPTOR",
];
/// Names that a condition or the limit of a loop may contain besides.
const PUBLIC_CONDITIONS: &[&str] = &[
    "at",
    "aad_blocks",
    "body_blocks",
    "blocks",
    "turns",
    "last",
    "lane",
    "lanes",
    "packets",
    "open",
    "left",
    "bytes",
    "body",
    "len",
    "descriptor",
    "key_slots",
    "is_inside",
    "zeros",
    "first_bytes",
    // Words of the language.
    "u32",
    "return",
];

/// The source without comments and preprocessor lines.
fn code(source: &str) -> String {
    let lines = source.lines().filter(|line| !line.starts_with('#') && !line.trim_start().starts_with("//"));
    lines.map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(|c: char| c.is_alphabetic()))
}

/// Texts between `open` and the matching `close`, for each `open` that `before` accepts.
fn enclosed(code: &str, (open, close): (char, char), before: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut found = Vec::new();
    for (start, _) in code.match_indices(open).filter(|(start, _)| before(&code[..*start])) {
        let mut depth = 0;
        let end = code[start..].find(|c: char| {
            depth += i32::from(c == open) - i32::from(c == close);
            depth == 0
        });
        found.push(&code[start + 1..start + end.expect("a closing bracket")]);
    }
    found
}

/// Indices and conditions with a name that is not public.
fn faults(source: &str) -> Vec<String> {
    let code = code(source);
    let indices = enclosed(&code, ('[', ']'), |_| true);
    let is_control = |before: &str| ["if", "while", "switch"].iter().any(|word| before.trim_end().ends_with(word));
    let mut conditions = enclosed(&code, ('(', ')'), is_control);
    // The second part of a loop's head.
    let heads = enclosed(&code, ('(', ')'), |before| before.trim_end().ends_with("for"));
    conditions.extend(heads.iter().filter_map(|head| head.split(';').nth(1)));
    // What is between a delimiter and a question mark. The sign of a comparison is no assignment.
    let without = ["==", "!=", "<=", ">="].iter().fold(code.clone(), |code, sign| code.replace(sign, "  "));
    for (at, _) in code.match_indices('?') {
        let start = without[..at].rfind([';', '=', '^', ',', '{']).map_or(0, |start| start + 1);
        conditions.push(&code[start..at]);
    }
    let bad_index = indices.iter().flat_map(|index| names(index).map(move |name| (name, *index)));
    let bad_index = bad_index.filter(|(name, _)| !PUBLIC.contains(name));
    let bad_condition = conditions.iter().flat_map(|condition| names(condition).map(move |name| (name, *condition)));
    let bad_condition = bad_condition.filter(|(name, _)| !PUBLIC.contains(name) && !PUBLIC_CONDITIONS.contains(name));
    bad_index.chain(bad_condition).map(|(name, text)| format!("{name} in `{}`", text.trim())).collect()
}

#[test]
fn no_index_and_no_condition_depends_on_a_secret() {
    assert!(enclosed(&code(KERNEL_SOURCE), ('[', ']'), |_| true).len() > 50);
    assert_eq!(faults(KERNEL_SOURCE), Vec::<String>::new());
    assert!(!code(KERNEL_SOURCE).contains("while"), "loops have a counter");
}

#[test]
fn secret_indices_and_conditions_are_found() {
    let with = |old: &str, new: &str| {
        assert!(KERNEL_SOURCE.contains(old), "{old}");
        !faults(&KERNEL_SOURCE.replacen(old, new, 1)).is_empty()
    };
    assert!(with("q[i] ^= key[i];", "q[i] ^= key[q[i] & 7];"));
    assert!(with("sum = sum2;", "if (x.hi & 1) sum = sum2;"));
    assert!(with("round < rounds;", "round < rounds + (q[0] & 1);"));
    assert!(with("open ? in : out", "in ? in : out"));
    for condition in ["(in == 0)", "in != 0", "in <= 3", "(4 >= in)"] {
        assert!(with("open ? in : out", &format!("{condition} ? in : out")), "{condition}");
    }
}

/// Compiles the kernel for Hopper, and looks at what became of it. The library has no binding in
/// this crate without the feature `cuda`, and a script is shorter than one.
#[test]
#[ignore = "WEIR_NVRTC=PATH/libnvrtc.so.12 (pip install nvidia-cuda-nvrtc-cu12), and --ignored"]
fn the_kernel_compiles_for_cuda() {
    let library = std::env::var_os("WEIR_NVRTC").expect("WEIR_NVRTC is set");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/kernel/compile.py");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/kernel/aes_gcm.cl");
    let run = std::process::Command::new("python3").args([script, source]).env("WEIR_NVRTC", library).output();
    let run = run.expect("python3");
    let (text, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{text}{errors}");
    let number = |name: &str| {
        let found = text.split_whitespace().find_map(|word| word.strip_prefix(&format!("{name}=")));
        found.and_then(|value| value.parse::<u32>().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
    };
    assert_eq!(number("stack"), 0, "registers only: {text}");
    assert!(number("registers") <= 128, "{text}");
}
