package tcp

import (
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"symmem/internal/control"
)

// token is a random secret of the group that authenticates both ends of a new connection: the end
// that connects sends the first half, and the accepting end answers with the second half.
type token [32]byte

const tokenHalf = len(token{}) / 2 // in bytes

// shareToken sets j.token. Group rank 0 creates and stores it, and the other ranks wait for it.
func (j *joiner) shareToken(ctx context.Context) error {
	isCreator := j.cfg.Group.Rank == 0
	return control.ShareToken(ctx, j.cfg.Store, j.cfg.key("token"), isCreator, j.token[:])
}

// hello holds the fields of an accepted encodedHello.
type hello struct {
	rank                int            // group rank of the sender
	attempt             uint32         // number of the sender's handshake with this rank, from 1
	source, destination netip.AddrPort // as seen by the sender
}

const (
	protocolName = "symrel04" // ends with the version
	numberBytes  = 4
	ipBytes      = 16          // IPv6, or IPv4 mapped to IPv6
	addressBytes = ipBytes + 2 // with the port

	helloBytes = len(protocolName) + tokenHalf +
		3*numberBytes + // rank, target and attempt
		2*addressBytes // source and destination
)

// encodedHello is the first message on a new connection, from the rank that connects. Numbers are
// little-endian.
type encodedHello struct {
	Protocol  [len(protocolName)]byte
	TokenHalf [tokenHalf]byte
	Rank      uint32
	// Target is the group rank that the sender dials. The connection may reach a different rank if
	// two machines have the same address, for example on container bridges.
	Target              uint32
	Attempt             uint32
	Source, Destination encodedAddress
}

type encodedAddress struct {
	IP   [ipBytes]byte
	Port uint16
}

func (j *joiner) encodeHello(target int, attempt uint32, conn net.Conn) []byte {
	h := encodedHello{
		Protocol:    [len(protocolName)]byte([]byte(protocolName)),
		TokenHalf:   [tokenHalf]byte(j.token[:tokenHalf]),
		Rank:        uint32(j.cfg.Group.Rank),
		Target:      uint32(target),
		Attempt:     attempt,
		Source:      encodeAddress(conn.LocalAddr()),
		Destination: encodeAddress(conn.RemoteAddr()),
	}
	b, _ := binary.Append(nil, binary.LittleEndian, h) // cannot fail
	return b
}

func encodeAddress(address net.Addr) encodedAddress {
	addrPort := addressOf(address)
	return encodedAddress{IP: addrPort.Addr().As16(), Port: addrPort.Port()}
}

func (a encodedAddress) decode() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a.IP).Unmap(), a.Port)
}

// addressOf returns a TCP address without its IPv6 zone, which other machines do not understand.
func addressOf(address net.Addr) netip.AddrPort {
	addrPort := address.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(addrPort.Addr().Unmap().WithZone(""), addrPort.Port())
}

// decodeHello returns ErrProtocol if the protocol, the token or the target is wrong, or if the
// sender is not a higher-numbered rank.
func (j *joiner) decodeHello(b [helloBytes]byte) (hello, error) {
	var h encodedHello
	_, _ = binary.Decode(b[:], binary.LittleEndian, &h) // cannot fail
	ownGroupRank := uint32(j.cfg.Group.Rank)
	isProtocol := string(h.Protocol[:]) == protocolName
	isAuthentic := subtle.ConstantTimeCompare(h.TokenHalf[:], j.token[:tokenHalf]) == 1
	isForThisRank := h.Target == ownGroupRank
	isHigherRank := ownGroupRank < h.Rank && h.Rank < uint32(len(j.cfg.Group.Ranks))
	isAccepted := isProtocol && isAuthentic && isForThisRank && isHigherRank
	if !isAccepted {
		return hello{}, ErrProtocol
	}

	return hello{
		rank:        int(h.Rank),
		attempt:     h.Attempt,
		source:      h.Source.decode(),
		destination: h.Destination.decode(),
	}, nil
}

// checkAddresses returns an error if the ends of a connection see different addresses. NCCL would
// wait forever in a network that translates addresses.
func (j *joiner) checkAddresses(h *hello, conn *net.TCPConn) error {
	source, destination := addressOf(conn.RemoteAddr()), addressOf(conn.LocalAddr())
	if h.source == source && h.destination == destination {
		return nil
	}

	ownRank := j.cfg.Group.Ranks[j.cfg.Group.Rank]
	return fmt.Errorf(
		"%s has connected from %v to %v, but rank %d on %s sees a connection from %v to %v: %w",
		j.describeRank(h.rank), h.source, h.destination,
		ownRank, control.HostName(), source, destination, errTranslated)
}

var errTranslated = errors.New("the network between the machines translates addresses (NAT or a " +
	"proxy); use a network in which machines can reach each other at their own addresses")
