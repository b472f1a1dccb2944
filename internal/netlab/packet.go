package netlab

import (
	"encoding/binary"
	"net/netip"
)

// A packet consists of an IP header, a TCP header and data. The router needs the destination in the
// IP header. For machines behind a network address translation (NAT), it also changes addresses.
//
// Suppose that machine 0 has the private address 10.77.0.1, and the public address 198.51.100.1. It
// opens a connection to machine 1, which must see only the public address. The router thus replaces
// the source of packets from machine 0 by the public address. Answers go to the public address,
// which the router replaces by the private one.

// maxPacket is the size in bytes of buffers for packets. It is larger than the MTU (the maximum
// packet size) of the interfaces, 1400.
const maxPacket = 2048

// Offsets of fields, in bytes from the start of their header.
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

// Values of fields. The first packet of a connection has flagSYN, but not flagACK. The answer has
// both.
const (
	protocolTCP = 6    // of ipv4Protocol
	flagSYN     = 0x02 // of tcpFlags
	flagACK     = 0x10 // of tcpFlags
)

// ipVersion returns the version of an IP packet: 4 or 6. The packet must not be empty.
func ipVersion(packet []byte) byte { return packet[0] >> 4 }

// ipv4HeaderLength returns the length of the header of an IPv4 packet in bytes, with options. The
// TCP header begins there.
func ipv4HeaderLength(packet []byte) int {
	const wordBytes = 4 // The length is stored as a number of words.
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

// translate replaces the addresses of a packet from machine src. It changes only TCP packets over
// IPv4. The caller must hold r.mu.
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

// isTCPOverIPv4 reports whether a packet has complete headers of IPv4 and TCP.
func isTCPOverIPv4(packet []byte) bool {
	if len(packet) < ipv4HeaderBytes+tcpHeaderBytes {
		return false
	}

	return ipVersion(packet) == 4 && packet[ipv4Protocol] == protocolTCP
}

// translateSource replaces the source of a packet from the machine behind NAT.
func (a addressPair) translateSource(packet []byte) {
	if addressAt(packet, ipv4Source) == a.private {
		replaceAddress(packet, ipv4Source, a.public)
	}
}

// translateDestination replaces the destination of a packet to the machine behind NAT.
//
// Other machines can neither open a connection to that machine nor use its private address. Such a
// packet gets the invalid destination 0.0.0.0, so that the router drops it.
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

// replaceAddress replaces the IPv4 address at an offset of a TCP packet, one word at a time. It
// also updates the checksums of both headers, which are sums of words with the address among them.
func replaceAddress(packet []byte, offset int, address netip.Addr) {
	const wordBytes = 2 // A checksum also has one word.
	ipChecksum := packet[ipv4Checksum:]
	tcpChecksumOffset := ipv4HeaderLength(packet) + tcpChecksum
	isComplete := tcpChecksumOffset+wordBytes <= len(packet)
	if !isComplete {
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

// updateChecksum updates a checksum after a word of the packet has changed. RFC 1624 defines the
// formula: the complement of ^checksum + ^before + after, in ones' complement.
func updateChecksum(checksum []byte, before, after uint16) {
	sum := uint32(^binary.BigEndian.Uint16(checksum)) + uint32(^before) + uint32(after)
	for sum > 0xffff {
		sum = (sum & 0xffff) + (sum >> 16) // adds the carry
	}

	binary.BigEndian.PutUint16(checksum, ^uint16(sum))
}
