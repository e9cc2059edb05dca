//! Hardware addresses: an interface's own, and the next hop's to an upstream, as the kernel knows them.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

/// The interface's own.
///
/// # Errors
/// If there is no such interface.
pub fn own(interface: &str) -> io::Result<[u8; 6]> {
    // SAFETY: zeros are a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (into, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *into = byte as libc::c_char;
    }
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: the socket is open, and the kernel writes an address into the request.
    let code = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &mut request) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded: this is what it wrote.
    let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(std::array::from_fn(|at| data[at] as u8))
}

/// Of the next hop to this host on the interface. `None` if the kernel has not found it yet; then it is made to look, and asking
/// again in a moment helps.
///
/// # Errors
/// If /proc cannot be read.
pub fn look_up(interface: &str, host: Ipv4Addr) -> io::Result<Option<[u8; 6]>> {
    // Of this thread: threads may be in several network namespaces.
    let hop = next_hop(&fs::read_to_string("/proc/thread-self/net/route")?, interface, host)
        .unwrap_or(host);
    let found = hardware_address(&fs::read_to_string("/proc/thread-self/net/arp")?, interface, hop);
    if found.is_none() {
        // Any datagram does; to the port that discards them. That it does not arrive does no harm.
        let _ = UdpSocket::bind("0.0.0.0:0")?.send_to(&[], (hop, 9));
    }
    Ok(found)
}

/// In /proc/net/arp. Complete entries alone.
fn hardware_address(table: &str, interface: &str, host: Ipv4Addr) -> Option<[u8; 6]> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [addr, _, flags, mac, _, device] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
        if addr.parse() != Ok(host) || device != interface || flags & 2 == 0 {
            return None;
        }
        let bytes: Option<Vec<u8>> =
            mac.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        bytes?.try_into().ok()
    })
}

/// By /proc/net/route: the gateway of the longest prefix. `None` if the host is reached without one.
fn next_hop(table: &str, interface: &str, host: Ipv4Addr) -> Option<Ipv4Addr> {
    // Addresses are printed as the words in memory that hold them in network byte order.
    let word = |field: &str| u32::from_str_radix(field, 16).ok();
    let host = u32::from_ne_bytes(host.octets());
    let routes = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (target, gateway, mask) =
            (word(fields.get(1)?)?, word(fields.get(2)?)?, word(fields.get(7)?)?);
        (fields[0] == interface && host & mask == target).then_some((mask.count_ones(), gateway))
    });
    let (_, gateway) = routes.max_by_key(|(bits, _)| *bits)?;
    (gateway != 0).then(|| Ipv4Addr::from(gateway.to_ne_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_neighbours_of_the_interface_are_known() {
        let table = "IP address       HW type     Flags       HW address            Mask     Device\n\
                     10.0.0.2         0x1         0x2         02:00:00:00:0a:02     *        eth0\n\
                     10.0.0.3         0x1         0x0         00:00:00:00:00:00     *        eth0\n\
                     10.0.0.4         0x1         0x6         02:00:00:00:0a:04     *        eth1\n";
        let of =
            |interface, host| hardware_address(table, interface, Ipv4Addr::new(10, 0, 0, host));
        assert_eq!(of("eth0", 2), Some([2, 0, 0, 0, 10, 2]));
        assert_eq!(of("eth0", 3), None);
        assert_eq!(of("eth0", 4), None);
        assert_eq!(of("eth1", 4), Some([2, 0, 0, 0, 10, 4]));
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn a_host_is_reached_by_the_longest_prefix() {
        let table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n\
                     eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\n\
                     eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
                     eth1\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n";
        assert_eq!(next_hop(table, "eth0", Ipv4Addr::new(10, 0, 0, 7)), None);
        assert_eq!(
            next_hop(table, "eth0", Ipv4Addr::new(192, 168, 0, 7)),
            Some(Ipv4Addr::new(10, 0, 0, 1))
        );
        assert_eq!(next_hop(table, "eth1", Ipv4Addr::new(192, 168, 0, 7)), None);
    }
}
