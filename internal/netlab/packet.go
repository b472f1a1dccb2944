package netlab

import (
	"encoding/binary"
	"net/netip"
)

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

// Values of fields.
const (
	protocolTCP = 6    // of ipv4Protocol
	flagSYN     = 0x02 // of tcpFlags
	flagACK     = 0x10 // of tcpFlags
)

func ipVersion(packet []byte) byte { return packet[0] >> 4 }

func ipv4HeaderLength(packet []byte) int {
	const wordBytes = 4 // unit of the length in the header
	return wordBytes * int(packet[0]&0xf)
}

// destinationOf returns the destination address, or the zero Addr if the packet is invalid.
func destinationOf(packet []byte) netip.Addr {
	switch {
	case len(packet) >= ipv4HeaderBytes && ipVersion(packet) == 4:
		return ipv4AddressAt(packet, ipv4Destination)
	case len(packet) >= ipv6HeaderBytes && ipVersion(packet) == 6:
		return netip.AddrFrom16([16]byte(packet[ipv6Destination:]))
	}

	return netip.Addr{}
}

func ipv4AddressAt(packet []byte, offset int) netip.Addr {
	return netip.AddrFrom4([4]byte(packet[offset:]))
}

// addressPair has the addresses of a machine behind network address translation (NAT). Its packets
// appear to come from the public address. The router sends answers to the private address.
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

// isTCPOverIPv4 reports whether the packet contains an IPv4 and a TCP header.
func isTCPOverIPv4(packet []byte) bool {
	return len(packet) >= ipv4HeaderBytes+tcpHeaderBytes && ipVersion(packet) == 4 &&
		packet[ipv4Protocol] == protocolTCP &&
		len(packet) >= ipv4HeaderLength(packet)+tcpHeaderBytes
}

func (a addressPair) translateSource(packet []byte) {
	if ipv4AddressAt(packet, ipv4Source) == a.private {
		replaceAddress(packet, ipv4Source, a.public)
	}
}

// translateDestination replaces the public address by the private one in answers. Other packets to
// the machine get the destination 0.0.0.0, which makes the router drop them.
func (a addressPair) translateDestination(packet []byte) {
	destination := ipv4AddressAt(packet, ipv4Destination)
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

// opensConnection reports whether the packet is the first of a TCP connection.
func opensConnection(packet []byte) bool {
	flags := packet[ipv4HeaderLength(packet)+tcpFlags]
	return flags&flagSYN != 0 && flags&flagACK == 0
}

// replaceAddress replaces an IPv4 address in a TCP packet, and updates the IP and TCP checksums.
func replaceAddress(packet []byte, offset int, address netip.Addr) {
	const wordBytes = 2 // Checksums add 16-bit words.
	tcpHeader := packet[ipv4HeaderLength(packet):]
	replacement := address.As4()
	for i := 0; i < len(replacement); i += wordBytes {
		before := binary.BigEndian.Uint16(packet[offset+i:])
		after := binary.BigEndian.Uint16(replacement[i:])
		updateChecksum(packet[ipv4Checksum:], before, after)
		updateChecksum(tcpHeader[tcpChecksum:], before, after)
		binary.BigEndian.PutUint16(packet[offset+i:], after)
	}
}

// updateChecksum updates a checksum for a changed word, as in equation 3 of RFC 1624.
func updateChecksum(checksum []byte, before, after uint16) {
	sum := uint32(^binary.BigEndian.Uint16(checksum)) + uint32(^before) + uint32(after)
	for sum > 0xffff {
		sum = (sum & 0xffff) + (sum >> 16) // adds the carry
	}

	binary.BigEndian.PutUint16(checksum, ^uint16(sum))
}
