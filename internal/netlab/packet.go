package netlab

import (
	"encoding/binary"
	"net/netip"
)

// maxPacket is the size in bytes of buffers for packets. It is larger than the MTU of the devices.
const maxPacket = 2048

// Offsets in IP and TCP headers in bytes, a protocol number and TCP flags.
const (
	ipv4Source, ipv4Destination = 12, 16
	ipv4Checksum, ipv4Protocol  = 10, 9
	ipv6Destination             = 24
	tcpChecksum, tcpFlags       = 16, 13
	protocolTCP                 = 6
	flagSYN, flagACK            = 0x02, 0x10
)

// destinationOf returns the destination of an IP packet, or false if the packet is invalid.
func destinationOf(packet []byte) (netip.Addr, bool) {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		return addressAt(packet, ipv4Destination), true
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(packet[ipv6Destination:])), true
	}
	return netip.Addr{}, false
}

// addressAt returns the IPv4 address at an offset.
func addressAt(packet []byte, offset int) netip.Addr {
	return netip.AddrFrom4([4]byte(packet[offset:]))
}

// addressPair contains the addresses of a machine behind NAT. Other machines see the public one.
type addressPair struct{ private, public netip.Addr }

// translate replaces the addresses of a TCP packet from machine src as NAT does. It gives a packet
// that must be dropped an invalid destination: other machines can neither open a connection to a
// machine behind NAT, nor use its private address. The caller must hold r.mu.
func (r *router) translate(src int, packet []byte) {
	if len(packet) < 40 || packet[0]>>4 != 4 || packet[ipv4Protocol] != protocolTCP {
		return
	}
	for machine, addresses := range r.translations {
		destination := addressAt(packet, ipv4Destination)
		switch {
		case machine == src && addressAt(packet, ipv4Source) == addresses.private:
			replaceAddress(packet, ipv4Source, addresses.public)
		case machine != src && destination == addresses.public && !opensConnection(packet):
			replaceAddress(packet, ipv4Destination, addresses.private)
		case machine != src && (destination == addresses.private || destination == addresses.public):
			replaceAddress(packet, ipv4Destination, netip.AddrFrom4([4]byte{}))
		}
	}
}

// opensConnection reports whether a TCP packet over IPv4 is the first of a connection.
func opensConnection(packet []byte) bool {
	headerBytes := 4 * int(packet[0]&0xf)
	return headerBytes+tcpFlags < len(packet) &&
		packet[headerBytes+tcpFlags]&(flagSYN|flagACK) == flagSYN
}

// replaceAddress replaces an IPv4 address in a TCP packet and updates both checksums.
func replaceAddress(packet []byte, offset int, address netip.Addr) {
	headerBytes, replacement := 4*int(packet[0]&0xf), address.As4()
	if headerBytes+tcpChecksum+2 > len(packet) {
		return
	}
	for i := 0; i < len(replacement); i += 2 {
		before := binary.BigEndian.Uint16(packet[offset+i:])
		after := binary.BigEndian.Uint16(replacement[i:])
		for _, checksum := range []int{ipv4Checksum, headerBytes + tcpChecksum} {
			updateChecksum(packet[checksum:], before, after)
		}
		binary.BigEndian.PutUint16(packet[offset+i:], after)
	}
}

// updateChecksum updates an Internet checksum after a word has changed (RFC 1624).
func updateChecksum(checksum []byte, before, after uint16) {
	sum := uint32(^binary.BigEndian.Uint16(checksum)) + uint32(^before) + uint32(after)
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(checksum, ^uint16(sum))
}
