package netlab

import (
	"encoding/binary"
	"net/netip"
)

// The router rewrites the addresses of a machine behind network address translation (NAT). If its
// private address is 10.77.0.1 and its public address is 198.51.100.1, other machines see packets
// from 198.51.100.1. The router sends their answers to 10.77.0.1.

// maxPacket is the size of packet buffers, more than the interfaces' MTU.
const maxPacket = 2048

// Offsets of fields in their headers.
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

func ipVersion(packet []byte) byte { return packet[0] >> 4 }

func ipv4HeaderLength(packet []byte) int {
	const wordBytes = 4 // The header has its length, with options, in 32-bit words.
	return wordBytes * int(packet[0]&0xf)
}

// destinationOf returns false if the packet is invalid.
func destinationOf(packet []byte) (netip.Addr, bool) {
	switch {
	case len(packet) >= ipv4HeaderBytes && ipVersion(packet) == 4:
		return addressAt(packet, ipv4Destination), true
	case len(packet) >= ipv6HeaderBytes && ipVersion(packet) == 6:
		return netip.AddrFrom16([16]byte(packet[ipv6Destination:])), true
	}

	return netip.Addr{}, false
}

func addressAt(packet []byte, offset int) netip.Addr {
	return netip.AddrFrom4([4]byte(packet[offset:]))
}

// addressPair has the addresses of a machine behind NAT.
type addressPair struct{ private, public netip.Addr }

// translate applies NAT to TCP packets over IPv4. The caller must hold r.mu.
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

// isTCPOverIPv4 also checks that the packet is long enough for both headers.
func isTCPOverIPv4(packet []byte) bool {
	if len(packet) < ipv4HeaderBytes+tcpHeaderBytes {
		return false
	}

	return ipVersion(packet) == 4 && packet[ipv4Protocol] == protocolTCP
}

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

func opensConnection(packet []byte) bool {
	offset := ipv4HeaderLength(packet) + tcpFlags
	if offset >= len(packet) {
		return false
	}

	return packet[offset]&(flagSYN|flagACK) == flagSYN
}

// replaceAddress replaces an IPv4 address in a TCP packet and updates both checksums that cover it.
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

// updateChecksum updates a checksum for a changed word, as in RFC 1624, in ones' complement:
// ^(^checksum + ^before + after).
func updateChecksum(checksum []byte, before, after uint16) {
	sum := uint32(^binary.BigEndian.Uint16(checksum)) + uint32(^before) + uint32(after)
	for sum > 0xffff {
		sum = (sum & 0xffff) + (sum >> 16) // adds the carry
	}

	binary.BigEndian.PutUint16(checksum, ^uint16(sum))
}
