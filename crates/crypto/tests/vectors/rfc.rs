//! Vectors of the RFCs and NIST.

use super::{Rig, esp, hex, iv};
use weir_crypto::Suite;

/// Checks an AEAD: key and salt, IV, associated data, plaintext, ciphertext and ICV together.
fn aead(suite: &str, keymat: &str, nonce: &str, aad: &str, clear: &str, sealed: &str) {
    let rig = Rig::new(esp(suite), &hex(keymat), &[]);
    let (body, icv) = rig.check(0, &hex(aad), iv(&hex(nonce)), &hex(clear));
    assert_eq!([body, icv].concat(), hex(sealed), "{suite}");
}

/// Checks a cipher, with a MAC that does not matter here.
fn cipher(name: &str, keymat: &str, vector: &str, clear: &str, sealed: &str) {
    let rig = Rig::new(esp(&format!("{name}-sha256")), &hex(keymat), &[9; 32]);
    assert_eq!(rig.check(0, &[], iv(&hex(vector)), &hex(clear)).0, hex(sealed), "{name}");
}

/// Checks a MAC.
fn mac(name: &str, key: &[u8], message: &[u8], icv: &str) {
    let rig = Rig::new(Suite::parse_ah(name).expect(name), &[], key);
    assert_eq!(rig.check(0, message, [0; 16], &[]).1, hex(icv), "{name}, {} bytes", message.len());
}

#[test]
fn aes_gcm_of_nist_cavp() {
    let lines = include_str!("nist-gcm.txt").lines().filter(|line| !line.starts_with('#'));
    let mut seen = [0; 2];
    for line in lines {
        let words: Vec<&str> = line.split(' ').map(|word| if word == "-" { "" } else { word }).collect();
        let [key, nonce, associated, clear, sealed, tag] = words[..] else { panic!("six words: {line}") };
        let suite = if key.len() == 32 { "aes128gcm16" } else { "aes256gcm16" };
        // The first four bytes of the nonce are the salt.
        let (salt, vector) = nonce.split_at(8);
        aead(suite, &format!("{key}{salt}"), vector, associated, clear, &format!("{sealed}{tag}"));
        seen[usize::from(key.len() > 32)] += 1;
    }
    assert_eq!(seen, [375; 2]);
}

const COUNTING: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223";
const SINGLE_BLOCK: &str = "53696e676c6520626c6f636b206d7367"; // "Single block msg"

#[test]
fn aes_cbc_of_rfc_3602() {
    let text = hex(COUNTING)[..32].iter().map(|b| format!("{b:02x}")).collect::<String>();
    cipher(
        "aes128",
        "06a9214036b8a15b512e03d534120006",
        "3dafba429d9eb430b422da802c9fac41",
        SINGLE_BLOCK,
        "e353779c1079aeb82708942dbe77181a",
    );
    cipher(
        "aes128",
        "c286696d887c9aa0611bbb3e2025a45a",
        "562e17996d093d28ddb3ba695a2e6f58",
        &text,
        "d296cd94c2cccf8a3a863028b5e1dc0a7586602d253cfff91b8266bea6d61ab1",
    );
}

#[test]
fn aes_cbc_of_nist_sp_800_38a() {
    let (iv, block) = ("000102030405060708090a0b0c0d0e0f", "6bc1bee22e409f96e93d7e117393172a");
    let long = "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4";
    cipher("aes128", "2b7e151628aed2a6abf7158809cf4f3c", iv, block, "7649abac8119b246cee98e9b12e9197d");
    let middle = "8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b";
    cipher("aes192", middle, iv, block, "4f021db243bc633d7178183a9fa071e8");
    cipher("aes256", long, iv, block, "f58c4c04d6e5f1ba779eabfb5f7bfbd6");
}

#[test]
fn aes_ctr_of_rfc_3686() {
    cipher(
        "aes128ctr",
        "ae6852f8121067cc4bf7a5765577f39e 00000030",
        "0000000000000000",
        SINGLE_BLOCK,
        "e4095d4fb7a7b3792d6175a3261311b8",
    );
    cipher(
        "aes128ctr",
        "7691be035e5020a8ac6e618529f9a0dc 00e0017b",
        "27777f3f4a1786f0",
        COUNTING,
        "c1cf48a89f2ffdd9cf4652e9efdb72d74540a42bde6d7836d59a5ceaaef3105325b2072f",
    );
    cipher(
        "aes192ctr",
        "16af5b145fc9f579c175f93e3bfb0eed863d06ccfdb78515 00000048",
        "36733c147d6d93cb",
        SINGLE_BLOCK,
        "4b55384fe259c9c84e7935a003cbe928",
    );
    cipher(
        "aes256ctr",
        "776beff2851db06f4c8a0542c8696f6c6a81af1eec96b4d37fc1d689e6c1c104 00000060",
        "db5672c97aa8f0b2",
        SINGLE_BLOCK,
        "145ad01dbf824ec7560863dc71e3e0c0",
    );
}

#[test]
fn des_of_fips_81_and_triple_des_of_sp_800_67() {
    cipher(
        "des",
        "0123456789abcdef",
        "1234567890abcdef",
        "4e6f77206973207468652074696d6520666f7220616c6c20",
        "e5c7cdde872bf27c43e934008c389c0f683788499a7c05f6",
    );
    // The text of SP 800-67 appendix B; block by block with a zero IV for the first, which is its
    // ECB answer.
    let key = "0123456789abcdef23456789abcdef01456789abcdef0123";
    for (clear, sealed) in [
        ("5468652071756663", "a826fd8ce53b855f"),
        ("6b2062726f776e20", "cce21c8112256fe6"),
        ("666f78206a756d70", "68d5c05dd9b6b900"),
    ] {
        cipher("3des", key, "0000000000000000", clear, sealed);
    }
    cipher("3des", key, "1234567890abcdef", "54686520717566636b2062726f776e20666f78206a756d70", TRIPLE_DES_CHAIN);
}

/// The same text chained, from OpenSSL.
const TRIPLE_DES_CHAIN: &str = "38413d4ba2325cf1141f707471ac2ced57db530f0123b5ac";

#[test]
fn hmacs_of_rfc_2202_and_2403_and_2404() {
    mac("md5", &[0x0b; 16], b"Hi There", "9294727a3638bb1c13f48ef8");
    mac("md5", &[0xaa; 16], &[0xdd; 50], "56be34521d144c88dbb8c733");
    mac("sha1", &[0x0b; 20], b"Hi There", "b617318655057264e28bc0b6");
    mac("sha1", &[0xaa; 20], &[0xdd; 50], "125d7342b9ac11cd91a39af4");
}

#[test]
fn hmacs_of_rfc_4868() {
    let jefe = b"Jefe".repeat(16);
    let want = b"what do ya want for nothing?";
    mac("sha256", &[0x0b; 32], b"Hi There", "198a607eb44bfbc69903a0f1cf2bbdc5");
    mac("sha256", &jefe[..32], want, "167f928588c5cc2eef8e3093caa0e87c");
    mac("sha384", &[0x0b; 48], b"Hi There", "b6a8d5636f5c6a7224f9977dcf7ee6c7fb6d0c48cbdee973");
    mac("sha384", &jefe[..48], want, "2c7353974f1842fd66d53c452ca42122b28c0b594cfb184d");
    let hi = "637edc6e01dce7e6742a99451aae82df23da3e92439e590e43e761b33e910fb8";
    mac("sha512", &[0x0b; 64], b"Hi There", hi);
    mac("sha512", &jefe[..64], want, "cb370917ae8a7ce28cfd1d8f4705d6141c173b2a9362c15df235dfb251b15454");
}

#[test]
fn xcbc_of_rfc_3566() {
    let bytes = hex(COUNTING);
    for (len, icv) in [
        (0, "75f0251d528ac01c4573dfd5"),
        (3, "5b376580ae2f19afe7219cee"),
        (16, "d2a246fa349b68a79998a439"),
        (20, "47f51b4564966215b8985c63"),
        (32, "f54f0ec8d2b9f3d36807734b"),
        (34, "becbb3bccdb518a30677d548"),
    ] {
        mac("aesxcbc", &bytes[..16], &bytes[..len], icv);
    }
    mac("aesxcbc", &bytes[..16], &[0; 1000], "f0dafee895db30253761103b");
}

#[test]
fn cmac_of_rfc_4493_and_4494() {
    let key = hex("2b7e151628aed2a6abf7158809cf4f3c");
    let message = hex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51
                       30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710");
    for (len, icv) in [
        (0, "bb1d6929e95937287fa37d12"),
        (16, "070a16b46b4d4144f79bdd9d"),
        (40, "dfa66747de9ae63030ca3261"),
        (64, "51f0bebf7e3b9d92fc497417"),
    ] {
        mac("aescmac", &key, &message[..len], icv);
    }
}

/// Cases 4, 10 and 16 of the GCM specification (McGrew and Viega), the 96-bit nonce split in salt
/// and IV as in RFC 4106 §4; and case 1 with an empty body, which equals GMAC.
#[test]
fn aes_gcm_of_its_specification() {
    let key = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
    let aad = "feedfacedeadbeeffeedfacedeadbeefabaddad2";
    let clear = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72
                 1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
    for (name, digits, body, icv) in [
        (
            "aes128gcm",
            32,
            "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e
             21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091",
            "5bc94fbc3221a5db94fae95ae7121a47",
        ),
        (
            "aes192gcm",
            48,
            "3980ca0b3c00e841eb06fac4872a2757859e1ceaa6efd984628593b40ca1e19c
             7d773d00c144c525ac619d18c84a3f4718e2448b2fe324d9ccda2710",
            "2519498e80f1478f37ba55bd6d27618c",
        ),
        (
            "aes256gcm",
            64,
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa
             8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
            "76fc6ece0f4e1768cddf8853bb2d551b",
        ),
    ] {
        let keymat = format!("{}cafebabe", &key[..digits]);
        for (icv_len, iiv) in [(8, ""), (12, ""), (16, ""), (16, "iiv")] {
            let sealed = format!("{body}{}", &icv[..icv_len * 2]);
            aead(&format!("{name}{icv_len}{iiv}"), &keymat, "facedbaddecaf888", aad, clear, &sealed);
        }
    }
    let zero = "0".repeat(40);
    aead("aes128gcm16", &zero, "0000000000000000", "", "", "58e2fccefa7e3061367f1d57a4e7455a");
    aead("aes128gmac", &zero, "0000000000000000", "", "", "58e2fccefa7e3061367f1d57a4e7455a");
}

/// An ESP packet with an extended sequence number, from draft-mcgrew-gcm-test.
#[test]
fn aes_gcm_of_an_esp_packet() {
    aead(
        "aes128gcm16",
        "4c80cdefbb5d10da906ac73c3613a634 2e443b68",
        "4956ed7e3b244cfe",
        "000043218765432100000000",
        "45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000
         00000000045f736970045f756470037369700963796265726369747902646b00
         0021000101020201",
        "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34
         cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff6247aeabb786b93bce
         61bc17d768fd9732459018148f6cbe722fd04796562dfdb4",
    );
}

/// The example of RFC 7634 appendix A.
#[test]
fn chacha20_poly1305_of_rfc_7634() {
    for name in ["chacha20poly1305", "chacha20poly1305iiv"] {
        aead(
            name,
            "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f a0a1a2a3",
            "1011121314151617",
            "0102030400000005",
            "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec10
             0007362708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223
             2425262728292a2b2c2d2e2f303132333435363701020204",
            "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c6
             14ee8099d52844eb61aa95dfab4c02f72aa71e7c4c4f64c9befe2facc638e8f3
             cbec163fac469b502773f6fb94e664da9165b82829f641e0
             76aaa8266b7fb0f7b11b369907e1ad43",
        );
    }
}

/// RFC 8439 §2.8.2.
#[test]
fn chacha20_poly1305_of_rfc_8439() {
    let text = "4c616469657320616e642047656e746c656d656e206f662074686520636c6173
                73206f66202739393a204966204920636f756c64206f6666657220796f75206f
                6e6c79206f6e652074697020666f7220746865206675747572652c2073756e73
                637265656e20776f756c642062652069742e";
    aead(
        "chacha20poly1305",
        "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f 07000000",
        "4041424344454647",
        "50515253c0c1c2c3c4c5c6c7",
        text,
        "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6
         3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36
         92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc
         3ff4def08e4b7a9de576d26586cec64b61161ae10b594f09e26a7e902ecbd0600691",
    );
}

/// RFC 4309 gives no vectors, and those of RFC 3610 have 13-byte nonces; these are from OpenSSL.
#[test]
fn aes_ccm_with_the_nonce_of_rfc_4309() {
    let clear = format!("{COUNTING}2425262728");
    for (name, key_len, sealed) in [
        (
            "aes128ccm8",
            16,
            "e40dce492ae93366b08ec761a53ffa92b29330928f66c7b77c268e779b19ec4e91fd1c5ed5ad4bb68f59299399c3a92629",
        ),
        (
            "aes192ccm12",
            24,
            "d49b1efe8e2fd4a96edd3200259c5a13b4944ab5153354efff1cf24dafacff89d5542657b8c1f690ed8f0fafda994e81
             162ca72453",
        ),
        (
            "aes256ccm16",
            32,
            "8b34501082f98487deff7cb4955dc69c5868e828867f153d141e3408935b0082c5cb2b066d9390dd51283718e263bb52
             e0aaa7ed14e43f6a29",
        ),
    ] {
        let key: String = (0x40..0x40 + key_len).map(|b| format!("{b:02x}")).collect();
        aead(name, &format!("{key}cafeba"), "1011121314151617", "0102030400000005", &clear, sealed);
    }
}

/// Packets in EESP's shape, made with two other libraries: the IV is part of what is authenticated.
#[test]
fn aeads_over_eesp_headers() {
    let key = "101112131415161718191a1b1c1d1e1f";
    let inner = "450000220001400040114e93c0000201c633640203e807d0000e420c454553502d41";
    let clear = format!("{inner}0000");
    aead(
        "aes128gcm16",
        &format!("{key}cafebabe"),
        "0102030405060708",
        "800000001122334400000000000000010102030405060708",
        &clear,
        "319779e6b7395859a48d8a11ba460aa17b5c227a258da6306119a6fcea2292e9b008f094325e711317c4683793880ca4ea0c4d8b",
    );
    aead(
        "aes128ccm16",
        &format!("{key}cafeba"),
        "0000000000000001",
        "800000001122338800000000000000010000000000000001",
        &clear,
        "305c017c32403cc8bcac8c93be4edb15a7ebba4be8fcf6c44ae20b1734428a10586d145834520cbc7866b5ae563a6730c65a0647",
    );
    aead(
        "aes128gmac",
        &format!("{key}cafebabe"),
        "0000000000000001",
        &format!("800000001122337700000000000000010000000000000001{clear}"),
        "",
        "8f58143870478f6fc0150a1ae4ccd7cf",
    );
}
