package netlab

import (
	"encoding/binary"
	"net/netip"
)

// The router reads the destination in the IP header of each packet. For a machine behind network
// address translation (NAT), it also rewrites addresses. Suppose that machine 0 has the private
// address 10.77.0.1 and the public address 198.51.100.1. The router replaces the source of its TCP
// packets by the public address, and the destination of the answers by the private address.

// maxPacket is the size of packet buffers in bytes, more than the interfaces' MTU of 1400.
const maxPacket = 2048

// Offsets of fields in their headers, in bytes.
const (
	ipv4Protocol    = 9
	ipv4Checksum    = 10
	ipv4Source      = 12
	ipv4Destination = 16
	ipv6Destination = 24
	tcpFlags        = 13
	tcpChecksum     = 16
)

// Lengths of headers in bytes, without options.
const (
	ipv4HeaderBytes = 20
	ipv6HeaderBytes = 40
	tcpHeaderBytes  = 20
)

// Values of fields. Only the first packet of a connection has flagSYN without flagACK.
const (
	protocolTCP = 6    // of ipv4Protocol
	flagSYN     = 0x02 // of tcpFlags
	flagACK     = 0x10 // of tcpFlags
)

// ipVersion returns the version field of a nonempty IP packet.
func ipVersion(packet []byte) byte { return packet[0] >> 4 }

// ipv4HeaderLength returns the length of an IPv4 header with its options, in bytes.
func ipv4HeaderLength(packet []byte) int {
	const wordBytes = 4 // The header stores its length in 32-bit words.
	return wordBytes * int(packet[0]&0xf)
}

// destinationOf returns the destination of an IP packet, or false if the packet is invalid.
func destinationOf(packet []byte) (netip.Addr, bool) {
	switch {
	case len(packet) >= ipv4HeaderBytes && ipVersion(packet) == 4:
		return addressAt(packet, ipv4Destination), true
	case len(packet) >= ipv6HeaderBytes && ipVersion(packet) == 6:
		return netip.AddrFrom16([16]byte(packet[ipv6Destination:])), true
	}

	return netip.Addr{}, false
}

// addressAt returns the IPv4 address at an offset.
func addressAt(packet []byte, offset int) netip.Addr {
	return netip.AddrFrom4([4]byte(packet[offset:]))
}

// addressPair holds the addresses of a machine behind NAT.
type addressPair struct{ private, public netip.Addr }

// translate applies NAT to a packet from machine src if it is TCP over IPv4. The caller must hold
// r.mu.
func (r *router) translate(src int, packet []byte) {
	if !isTCPOverIPv4(packet) {
		return
	}

	for machine, addresses := range r.translations {
		if machine == src {
			addresses.translateSource(packet)
		} else {
			addresses.translateDestination(packet)
		}
	}
}

// isTCPOverIPv4 reports whether a packet is TCP over IPv4, and long enough for both headers.
func isTCPOverIPv4(packet []byte) bool {
	if len(packet) < ipv4HeaderBytes+tcpHeaderBytes {
		return false
	}

	return ipVersion(packet) == 4 && packet[ipv4Protocol] == protocolTCP
}

// translateSource hides the private address in a packet from the machine behind NAT.
func (a addressPair) translateSource(packet []byte) {
	if addressAt(packet, ipv4Source) == a.private {
		replaceAddress(packet, ipv4Source, a.public)
	}
}

// translateDestination lets only answers to the public address reach the machine behind NAT. Other
// packets to the machine get the destination 0.0.0.0, so that the router drops them.
func (a addressPair) translateDestination(packet []byte) {
	destination := addressAt(packet, ipv4Destination)
	isToMachine := destination == a.public || destination == a.private
	if !isToMachine {
		return
	}

	isAnswer := destination == a.public && !opensConnection(packet)
	if isAnswer {
		replaceAddress(packet, ipv4Destination, a.private)
	} else {
		replaceAddress(packet, ipv4Destination, netip.IPv4Unspecified())
	}
}

// opensConnection reports whether a TCP packet over IPv4 is the first of a connection.
func opensConnection(packet []byte) bool {
	offset := ipv4HeaderLength(packet) + tcpFlags
	if offset >= len(packet) {
		return false
	}

	return packet[offset]&(flagSYN|flagACK) == flagSYN
}

// replaceAddress replaces the IPv4 address at an offset of a TCP packet, and updates the IP and TCP
// checksums, which both cover it.
func replaceAddress(packet []byte, offset int, address netip.Addr) {
	const wordBytes = 2 // Checksums add 16-bit words.
	ipChecksum := packet[ipv4Checksum:]
	tcpChecksumOffset := ipv4HeaderLength(packet) + tcpChecksum
	hasTCPChecksum := tcpChecksumOffset+wordBytes <= len(packet)
	if !hasTCPChecksum {
		return
	}

	replacement := address.As4()
	for i := 0; i < len(replacement); i += wordBytes {
		before := binary.BigEndian.Uint16(packet[offset+i:])
		after := binary.BigEndian.Uint16(replacement[i:])
		updateChecksum(ipChecksum, before, after)
		updateChecksum(packet[tcpChecksumOffset:], before, after)
		binary.BigEndian.PutUint16(packet[offset+i:], after)
	}
}

// updateChecksum updates a checksum after a word of the packet has changed, as in RFC 1624:
// ^(^checksum + ^before + after) in ones' complement.
func updateChecksum(checksum []byte, before, after uint16) {
	sum := uint32(^binary.BigEndian.Uint16(checksum)) + uint32(^before) + uint32(after)
	for sum > 0xffff {
		sum = (sum & 0xffff) + (sum >> 16) // adds the carry
	}

	binary.BigEndian.PutUint16(checksum, ^uint16(sum))
}
