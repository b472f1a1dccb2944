package netlab

import (
	"encoding/binary"
	"net/netip"
)

// maxPacket is the size in bytes of buffers for packets. It is larger than the MTU of the devices.
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

// Values of fields.
const (
	protocolTCP = 6 // of ipv4Protocol
	flagSYN     = 0x02
	flagACK     = 0x10
)

// ipVersion returns the version of an IP packet, which must not be empty.
func ipVersion(packet []byte) byte { return packet[0] >> 4 }

// ipv4HeaderLength returns the length of the header of an IPv4 packet in bytes, with options. The
// TCP header begins there.
func ipv4HeaderLength(packet []byte) int {
	const wordBytes = 4 // unit of the field
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

// addressPair contains the addresses of a machine behind a network address translation (NAT).
// Other machines see only the public address.
type addressPair struct{ private, public netip.Addr }

// translate replaces the addresses of a TCP packet from machine src as NAT does. The caller must
// hold r.mu.
//
// Other machines can neither open a connection to a machine behind NAT nor use its private address.
// translate gives such packets the invalid destination 0.0.0.0, so that the router drops them.
func (r *router) translate(src int, packet []byte) {
	if len(packet) < ipv4HeaderBytes+tcpHeaderBytes {
		return
	}

	if ipVersion(packet) != 4 || packet[ipv4Protocol] != protocolTCP {
		return
	}

	for machine, addresses := range r.translations {
		if machine == src {
			if addressAt(packet, ipv4Source) == addresses.private {
				replaceAddress(packet, ipv4Source, addresses.public)
			}

			continue
		}

		destination := addressAt(packet, ipv4Destination)
		switch {
		case destination == addresses.public && !opensConnection(packet):
			replaceAddress(packet, ipv4Destination, addresses.private)
		case destination == addresses.public || destination == addresses.private:
			replaceAddress(packet, ipv4Destination, netip.IPv4Unspecified())
		}
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

// replaceAddress replaces the IPv4 address at an offset of a TCP packet. It updates the checksums
// of both headers, which cover the address.
func replaceAddress(packet []byte, offset int, address netip.Addr) {
	const wordBytes = 2 // Checksums and the words that they cover have 16 bits.
	ipChecksum := packet[ipv4Checksum:]
	tcpChecksumOffset := ipv4HeaderLength(packet) + tcpChecksum
	if tcpChecksumOffset+wordBytes > len(packet) {
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

// updateChecksum updates an Internet checksum after a word of the packet has changed. RFC 1624
// defines the formula: the complement of ^checksum + ^before + after, in ones' complement.
func updateChecksum(checksum []byte, before, after uint16) {
	sum := uint32(^binary.BigEndian.Uint16(checksum)) + uint32(^before) + uint32(after)
	for sum > 0xffff {
		sum = (sum & 0xffff) + (sum >> 16) // adds the carry
	}

	binary.BigEndian.PutUint16(checksum, ^uint16(sum))
}
