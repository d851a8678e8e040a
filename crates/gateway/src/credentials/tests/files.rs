//! Files as openssl and strongSwan's pki write them; without those programs the tests say so and pass.

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
         openssl pkcs12 -export -inkey ed.pem -in x509/ed -passout pass:weir -out pkcs12/ed.p12
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
        ],
    );
    let told = |words: &[&str]| faults.iter().any(|fault| words.iter().all(|word| fault.contains(word)));
    assert!(
        told(&["old.pem", "openssl pkcs8 -topk8"])
            && told(&["ed.p12", "openssl pkcs12"])
            && told(&["scrypt", "PBKDF2"])
    );
    assert_eq!(faults.len(), 3, "{faults:?}");
    for name in ["rsa", "p521", "ed"] {
        proves_itself(&store, &format!("{name}.weir.test"));
    }
    let listed = store.list();
    assert_eq!(listed.iter().filter(|line| line.has_private_key && line.kind == "X509").count(), 3);
    assert!(listed.iter().any(|line| line.kind == "PUBKEY" && line.has_private_key));
    assert!(listed.iter().any(|line| line.flag == "CA" && line.subject.contains("CA")));
    let mut without = Store::default();
    let faults = without.load_folders(&folder, &[]);
    assert!(faults.iter().any(|fault| fault.contains("rsa.pem") && fault.contains("passphrase")));
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
    assert_eq!(store.add_private_key(&leaf.key_der, &[], Origin::Vici), Ok(key));
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
