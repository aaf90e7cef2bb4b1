//! Sockets: none without a network, and with one only those that reach the network.

use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use toolwarden_tools::effects::processes::confinement::{Confinement, FileAccess};

use super::field::Field;

/// Whether it is there without a sandbox, without a network, with one, and with one and local sockets.
type Sockets = (&'static str, &'static str, [Option<bool>; 4]);

const NETWORK: [Option<bool>; 4] = [Some(true), Some(false), Some(true), Some(true)];
const LOCAL: [Option<bool>; 4] = [Some(true), Some(false), Some(false), Some(true)];
/// Not everybody may have it without a sandbox.
const NEVER: [Option<bool>; 4] = [None, Some(false), Some(false), Some(false)];

const SOCKETS: &[Sockets] = &[
    ("tcp", "socket(S, 2, 1, 0)", NETWORK),
    ("tcp over IPv6", "socket(S, 10, 1, 0)", NETWORK),
    ("udp", "socket(S, 2, 2, 0)", NETWORK),
    ("addresses", "socket(S, 16, 3, 0)", NETWORK),
    ("unix stream", "socket(S, 1, 1, 0)", LOCAL),
    ("unix datagram", "socket(S, 1, 2, 0)", LOCAL),
    ("unix packet", "socket(S, 1, 5, 0)", LOCAL),
    ("pair of datagrams", "socketpair(A, B, 1, 2, 0)", LOCAL),
    ("pair of raw", "socketpair(A, B, 1, 3, 0)", LOCAL),
    ("pair of streams", "socketpair(A, B, 1, 1, 0)", [Some(true); 4]),
    ("raw", "socket(S, 2, 3, 1)", NEVER),
    ("raw over IPv6", "socket(S, 10, 3, 58)", NEVER),
    ("packet", "socket(S, 17, 3, 0)", NEVER),
    ("old packet", "socket(S, 2, 10, 0)", NEVER),
    ("audit", "socket(S, 16, 3, 9)", NEVER),
    ("kernel crypto", "socket(S, 38, 5, 0)", NEVER),
    ("virtual machine", "socket(S, 40, 1, 0)", NEVER),
    ("bluetooth", "socket(S, 31, 3, 0)", NEVER),
];

fn confinements(field: &Field) -> [Option<Confinement>; 4] {
    let plain = field.confinement(FileAccess::WorkspaceWrite);
    let (offline, local) = (plain.clone().without_network(), plain.clone().with_local_sockets());
    [None, Some(offline), Some(plain), Some(local)]
}

pub(crate) fn of_all_families() {
    let field = Field::new();
    for (name, socket, expected) in SOCKETS {
        for (confinement, expected) in confinements(&field).iter().zip(expected) {
            let ran = field.run(&format!("perl -e '{socket} or die \"$!\\n\"'"), confinement.as_ref());
            if let Some(expected) = expected {
                assert_eq!(ran.is_success, *expected, "{name}, {confinement:?}: {}", ran.text);
            }
        }
    }
}

pub(crate) fn nothing_is_reached() {
    let field = Field::new();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let path = field.outside.join("engine.sock");
    let _named = UnixListener::bind(&path).unwrap();
    let abstract_name = format!("toolwarden-test-{}", std::process::id());
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap();
    let local = |address: &str| format!("perl -e 'socket(S, 1, 1, 0) or die; connect(S, {address}) or die \"$!\\n\"'");
    let ways = [
        (format!(": >/dev/tcp/127.0.0.1/{}", tcp.local_addr().unwrap().port()), [true, false, true, true]),
        (format!("echo x >/dev/udp/127.0.0.1/{}", udp.local_addr().unwrap().port()), [true, false, true, true]),
        (
            format!("setsid -w bash -c ': >/dev/tcp/127.0.0.1/{}'", tcp.local_addr().unwrap().port()),
            [true, false, true, true],
        ),
        (local(&format!("pack(\"Sa*\", 1, \"{}\")", path.display())), [true, false, false, true]),
        (local("pack(\"Sa*\", 1, \"$ENV{OUT}/engine.sock\")"), [true, false, false, true]),
    ];
    for (line, expected) in &ways {
        for (confinement, expected) in confinements(&field).iter().zip(expected) {
            let ran = field.run(line, confinement.as_ref());
            assert_eq!(ran.is_success, *expected, "{line}, {confinement:?}: {}", ran.text);
        }
    }
    // What has no path belongs to whoever listens outside, with local sockets too.
    let line = local(&format!("pack(\"Sxa*\", 1, \"{abstract_name}\")"));
    assert!(field.run(&line, None).is_success);
    for confinement in &confinements(&field)[1..3] {
        assert!(!field.run(&line, confinement.as_ref()).is_success, "{confinement:?}");
    }
}

/// The network can be taken away alone.
pub(crate) fn without_a_network_files_may_be_free() {
    let field = Field::new();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let offline = Confinement::new(FileAccess::Off).without_network().within(&field.work);
    assert!(field.run("echo x >\"$OUT/new\"", Some(&offline)).is_success);
    let line = format!(": >/dev/tcp/127.0.0.1/{}", tcp.local_addr().unwrap().port());
    assert!(!field.run(&line, Some(&offline)).is_success);
    assert!(!field.run("perl -e 'socket(S, 1, 1, 0) or die'", Some(&offline)).is_success);
}
