//! A script for Windows PowerShell: imports the CA and the identity for the machine and creates an
//! IKEv2 connection.

use credentials::pem::base64;
use zeroize::Zeroizing;

use super::{Cipher, Client, Gateway};

/// The script. The identity is encrypted with the password, which the script requests.
///
/// # Errors
/// Windows does not import the kind of key.
pub(crate) fn script(
    client: &Client<'_>,
    gateway: &Gateway,
    password: &str,
    cipher: Cipher,
) -> anyhow::Result<Zeroizing<String>> {
    client.require_common_key("Windows")?;
    let identity = client.pkcs12(password, cipher)?;
    let name = quoted(&gateway.address);
    let split = if gateway.networks.is_empty() { "" } else { " -SplitTunneling" };
    let mut out = Zeroizing::new(String::with_capacity(16 << 10));
    // The defaults of Windows for IKE are SHA-1, Triple DES and modp1024.
    out.push_str(&format!(
        "# Imports a certificate for this computer and adds an IKEv2 connection. To run it:
#   powershell -ExecutionPolicy Bypass -File <this file>
#Requires -RunAsAdministrator
$ErrorActionPreference = 'Stop'
$password = Read-Host -AsSecureString -Prompt 'Password of the certificate'
$file = New-TemporaryFile
try {{
    [IO.File]::WriteAllBytes($file.FullName, [Convert]::FromBase64String('{}'))
    Import-Certificate -FilePath $file.FullName -CertStoreLocation Cert:\\LocalMachine\\Root | Out-Null
    [IO.File]::WriteAllBytes($file.FullName, [Convert]::FromBase64String('{}'))
    Import-PfxCertificate -FilePath $file.FullName -CertStoreLocation Cert:\\LocalMachine\\My `
        -Password $password | Out-Null
}} finally {{
    Remove-Item -Force $file.FullName
}}
Add-VpnConnection -Name {name} -ServerAddress {name} -TunnelType Ikev2 `
    -AuthenticationMethod MachineCertificate -EncryptionLevel Required -AllUserConnection{split} -Force
Set-VpnConnectionIPsecConfiguration -ConnectionName {name} -AllUserConnection `
    -EncryptionMethod AES256 -IntegrityCheckMethod SHA256 -DHGroup ECP256 `
    -CipherTransformConstants GCMAES256 -AuthenticationTransformConstants GCMAES256 -PfsGroup None -Force
",
        *base64(client.authority.der()),
        *base64(&identity),
    ));
    for network in &gateway.networks {
        let network = quoted(network);
        out.push_str(&format!(
            "Add-VpnConnectionRoute -ConnectionName {name} -DestinationPrefix {network} -AllUserConnection\n"
        ));
    }
    // Editors of old systems show nothing else as lines.
    Ok(Zeroizing::new(out.replace('\n', "\r\n")))
}

/// A literal string of PowerShell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{gateway, with_client};
    use super::*;
    use crate::key::KeyKind;

    #[test]
    fn a_script_imports_both_and_adds_routes() {
        with_client(KeyKind::EcdsaP256, |client| {
            let script = script(client, &gateway(), "a pass", Cipher::Aes256).expect("a script");
            assert_eq!(script.matches("Add-VpnConnectionRoute").count(), 2);
            assert!(script.contains("-ServerAddress 'vpn.example.org'"), "{}", *script);
            assert!(script.contains("-AllUserConnection -SplitTunneling -Force\r\n"), "{}", *script);
            assert!(script.contains(&*base64(client.authority.der())));
            assert!(!script.contains("a pass"), "the password is not in the file");
        });
        assert_eq!(quoted("a'; Remove-Item x #"), "'a''; Remove-Item x #'");
        with_client(KeyKind::Ed25519, |client| {
            assert!(script(client, &gateway(), "a pass", Cipher::Aes256).is_err());
        });
    }
}
