//! Files as openssl and strongSwan's pki write them; without those programs the tests say so and
//! pass.

use std::path::Path as FilePath;
use std::process::Command;

use super::super::store::Passphrase;
use super::super::{sign, verify};
use super::*;

fn sh(folder: &FilePath, script: &str) -> bool {
    let done = Command::new("sh").arg("-ec").arg(script).current_dir(folder).output().expect("a shell");
    if !done.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&done.stderr));
    }
    done.status.success()
}

fn there(program: &str) -> bool {
    let found = Command::new("sh").arg("-c").arg(format!("command -v {program}")).output();
    let found = found.is_ok_and(|found| found.status.success());
    if !found {
        eprintln!("{program} is not there: skipped");
    }
    found
}

/// The system's clock: these certificates begin now.
fn now() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970")
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("weir-credentials-{name}-{}", std::process::id()));
    for sub in ["x509", "x509ca", "x509crl", "private", "pubkey", "pkcs12", "rsa", "ecdsa"] {
        std::fs::create_dir_all(folder.join(sub)).expect("a folder");
    }
    folder
}

fn proves_itself(store: &Store, name: &str) {
    let local = Auth { id: like(name), ..auth(public_key(&[])) };
    let request = sign_request(connection(local, auth(AuthMethod::Any)), &ALL_HASHES);
    let signed = sign::sign(store, &request, now()).map_err(|refusal| refusal.0).expect(name);
    let asked = verify_request(connection(auth(AuthMethod::Psk), auth(public_key(&[]))), &request, signed);
    assert!(verify::verify(store, &asked, now()).0.is_ok(), "{name}");
}

#[test]
fn what_openssl_writes() {
    if !there("openssl") {
        return;
    }
    let folder = folder("openssl");
    let made = sh(
        &folder,
        "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out ca.key
         openssl req -x509 -new -key ca.key -subj '/O=Weir/CN=CA' -days 30 -out x509ca/ca.pem
         make() { openssl req -new -key $1 -subj /O=Weir/CN=$2 -out r.csr
                  printf 'subjectAltName=DNS:%s.weir.test\\n' $2 > ext
                  openssl x509 -req -in r.csr -CA x509ca/ca.pem -CAkey ca.key -days 20 -extfile ext -outform $3 -out x509/$2; }
         openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -aes-256-cbc -pass pass:weir -out private/rsa.pem
         openssl pkey -in private/rsa.pem -passin pass:weir -out plain.pem && make plain.pem rsa PEM
         openssl ecparam -name secp521r1 -genkey -noout -outform DER -out ecdsa/p521.der
         openssl ec -inform DER -in ecdsa/p521.der -out p521.pem && make p521.pem p521 DER
         openssl genpkey -algorithm ED25519 -out ed.pem && make ed.pem ed PEM
         openssl pkcs8 -topk8 -in ed.pem -v2 aes-128-cbc -v2prf hmacWithSHA512 -iter 1000 -passout pass:other -out private/ed.pem
         openssl pkey -in ed.pem -pubout -out pubkey/ed.pem
         openssl rsa -in plain.pem -aes128 -traditional -passout pass:weir -out rsa/old.pem
         openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out box.pem && make box.pem box PEM
         mv x509/box box.crt
         openssl pkcs12 -export -inkey box.pem -in box.crt -certfile x509ca/ca.pem -passout pass:weir -out pkcs12/box.p12
         openssl pkcs12 -export -legacy -inkey box.pem -in box.crt -passout pass:weir -out pkcs12/old.p12
         openssl pkcs12 -export -inkey box.pem -in box.crt -passout pass: -out pkcs12/open.p12
         cp pkcs12/box.p12 private/ && cp pkcs12/box.p12 pkcs12/lost.p12
         openssl pkcs8 -topk8 -in ed.pem -scrypt -passout pass:weir -out private/scrypt.pem",
    );
    assert!(made, "openssl made the files");
    let passphrase = |folder, file, secret: &'static str| Passphrase { folder, file, secret: secret.as_bytes() };
    let mut store = Store::default();
    let faults = store.load_folders(
        &folder,
        &[
            passphrase("private", "RSA.pem", "weir"),
            passphrase("private", "ed.pem", "wrong"),
            passphrase("private", "ed.pem", "other"),
            passphrase("private", "scrypt.pem", "weir"),
            passphrase("pkcs12", "box.p12", "weir"),
            passphrase("pkcs12", "old.p12", "weir"),
            passphrase("pkcs12", "lost.p12", "wrong"),
        ],
    );
    let reported = |words: &[&str]| faults.iter().any(|fault| words.iter().all(|word| fault.contains(word)));
    assert!(
        reported(&["old.pem", "openssl pkcs8 -topk8"])
            && reported(&["private/box.p12", "folder pkcs12"])
            && reported(&["lost.p12", "no passphrase opens it"])
            && reported(&["scrypt", "PBKDF2"])
    );
    assert_eq!(faults.len(), 4, "{faults:?}");
    for name in ["rsa", "p521", "ed", "box"] {
        proves_itself(&store, &format!("{name}.weir.test"));
    }
    let listed = store.list();
    assert_eq!(listed.iter().filter(|line| line.has_private_key && line.kind == "X509").count(), 4);
    assert!(listed.iter().any(|line| line.kind == "PUBKEY" && line.has_private_key));
    assert!(listed.iter().any(|line| line.flag == "CA" && line.subject.contains("CA")));
    let mut without = Store::default();
    let faults = without.load_folders(&folder, &[]);
    assert!(faults.iter().any(|fault| fault.contains("rsa.pem") && fault.contains("passphrase")));
    // A PKCS #12 file brings everything: key, certificate and CA.
    for (file, cas) in [("box.p12", 1), ("old.p12", 0), ("open.p12", 0)] {
        let bytes = std::fs::read(folder.join("pkcs12").join(file)).expect("a file");
        let mut alone = Store::default();
        alone.add_pkcs12(&bytes, &[b"weir"], Origin::File).expect(file);
        assert_eq!(alone.list().iter().filter(|line| line.has_private_key).count(), 1, "{file}");
        assert_eq!(alone.list().iter().filter(|line| line.flag == "CA").count(), cas, "{file}");
        if cas > 0 {
            proves_itself(&alone, "box.weir.test");
        }
    }
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn what_is_sealed_here_openssl_reads() {
    if !there("openssl") {
        return;
    }
    use super::super::{pem, pkcs8, pkcs12};
    let folder = folder("sealed");
    let root = Entity::ca("Root", None);
    let leaf = Entity::leaf("moon", &["moon.weir.test"], &root);
    let seal = |protection| {
        pkcs12::seal(&leaf.key_der, &leaf.der, &[&root.der], "moon", "a pass", protection).expect("a file")
    };
    std::fs::write(folder.join("aes.p12"), seal(pkcs12::Protection::Aes256)).expect("written");
    std::fs::write(folder.join("des.p12"), seal(pkcs12::Protection::TripleDes)).expect("written");
    std::fs::write(folder.join("key.pem"), &*pkcs8::seal(&leaf.key_der, b"a pass").expect("a key")).expect("written");
    std::fs::write(folder.join("plain.pem"), &*pem::encode("PRIVATE KEY", &leaf.key_der)).expect("written");
    let opened = sh(
        &folder,
        "openssl pkcs12 -in aes.p12 -passin 'pass:a pass' -info -noout 2>&1 | grep -q 'PBES2, PBKDF2, AES-256-CBC, Iteration 50000, PRF hmacWithSHA256'
         openssl pkcs12 -in des.p12 -passin 'pass:a pass' -info -noout 2>&1 | grep -q 'pbeWithSHA1And3-KeyTripleDES-CBC, Iteration 50000'
         for file in aes des; do
             openssl pkcs12 -in $file.p12 -passin 'pass:a pass' -nodes -out all.pem
             test $(grep -c 'BEGIN CERTIFICATE' all.pem) = 2
             openssl pkey -in all.pem | cmp - plain.pem
             ! openssl pkcs12 -in $file.p12 -passin pass:wrong -noout 2>/dev/null
         done
         openssl pkey -in key.pem -passin 'pass:a pass' | cmp - plain.pem",
    );
    assert!(opened, "openssl reads the files");
    let sealed = std::fs::read(folder.join("key.pem")).expect("a file");
    assert!(pkcs8::open(&sealed, &[b"wrong", b"a pass"]).expect("opens")[..] == leaf.key_der[..]);
    assert!(pkcs8::open(&sealed, &[b"wrong"]).is_err());
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn what_strongswan_writes() {
    if !there("pki") {
        return;
    }
    let folder = folder("pki");
    let made = sh(
        &folder,
        "pki --gen --type ed25519 --outform pem > ca.key
         pki --self --ca --in ca.key --type ed25519 --dn 'C=CH, O=Weir, CN=CA' --outform pem > x509ca/ca.pem
         for kind in rsa ecdsa ed25519; do
             case $kind in rsa) size='--size 3072';; ecdsa) size='--size 384';; *) size=;; esac
             pki --gen --type $kind $size --outform der > private/$kind.der
             pki --pub --type priv --in private/$kind.der --outform der > $kind.pub
             pki --issue --cacert x509ca/ca.pem --cakey ca.key --in $kind.pub --type pub \
                 --dn \"C=CH, O=Weir, CN=$kind\" --san $kind.weir.test --flag ikeIntermediate --outform pem > x509/$kind.pem
         done
         pki --signcrl --cacert x509ca/ca.pem --cakey ca.key --reason superseded --cert x509/rsa.pem > x509crl/ca.crl",
    );
    assert!(made, "pki made the files");
    let mut store = Store::default();
    assert_eq!(store.load_folders(&folder, &[]), Vec::<String>::new());
    for name in ["ecdsa", "ed25519"] {
        proves_itself(&store, &format!("{name}.weir.test"));
        proves_itself(&store, &format!("C=CH, O=Weir, CN={name}"));
    }
    // The revoked certificate can sign, but every peer refuses it.
    let request = sign_request(
        connection(Auth { id: like("rsa.weir.test"), ..auth(public_key(&[])) }, auth(AuthMethod::Any)),
        &ALL_HASHES,
    );
    let signed = sign::sign(&store, &request, now()).map_err(|refusal| refusal.0).expect("a signature");
    let asked = verify_request(connection(auth(AuthMethod::Psk), auth(public_key(&[]))), &request, signed);
    assert!(verify::verify(&store, &asked, now()).0.is_err_and(|refusal| refusal.0.contains("is revoked")));
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn what_came_over_vici_is_listed_and_unloaded() {
    let root = Entity::ca("Root", None);
    let leaf = Entity::leaf("moon", &["moon.weir.test"], &root);
    let mut store = store(&[&root], &[], &[]);
    store.add_certificates(&leaf.der, CertificateUse::EndEntity, Origin::Vici).expect("a certificate");
    let key = store.add_private_key(&leaf.key_der, &[], Origin::Vici).expect("a key");
    assert_eq!(store.add_private_key(&leaf.key_der, &[], Origin::Vici).expect("a key"), key);
    assert_eq!(store.key_ids().collect::<Vec<_>>(), [key]);
    let shared = |id: &str, secret: &[u8]| {
        super::super::Shared::new(id, super::super::SharedKind::Ike, Vec::new(), Secret::from_slice(secret))
    };
    store.add_shared(shared("one", b"1"), Origin::Vici);
    store.add_shared(shared("one", b"2"), Origin::Vici);
    store.add_shared(shared("file", b"3"), Origin::File);
    assert_eq!(store.shared_ids().collect::<Vec<_>>(), ["one"]);
    assert!(store.unload_shared("one") && !store.unload_shared("one") && !store.unload_shared("file"));
    assert!(store.unload_key(&key) && !store.unload_key(&key));
    assert_eq!(store.list().len(), 2);
    store.clear(Origin::Vici);
    assert_eq!((store.list().len(), store.list()[0].flag), (1, "CA"));
    assert_eq!(store.shared().count(), 1);
    assert!(store.add_certificates(b"nonsense", CertificateUse::EndEntity, Origin::Vici).is_err());
}
