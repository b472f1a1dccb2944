package tcp

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// Config configures Join.
type Config struct {
	// Store is a key-value store shared by all ranks, through which they find each other.
	Store driver.Store
	// Group describes the group and this rank. Group.Check is ignored, because the caller of Compare
	// decides which calls to compare.
	Group driver.GroupConfig
	// Timeout bounds waits for other ranks if Group.Timeout is not set. It must be positive.
	Timeout time.Duration
	Late    driver.Late // when and how to warn of late ranks
	// Host is the local address to listen on, or "" for all addresses.
	Host string
}

func (c *Config) check() error {
	rankCount := len(c.Group.Ranks)
	switch {
	case c.Group.Rank < 0 || c.Group.Rank >= rankCount:
		return fmt.Errorf("group rank %d is invalid in a group of %d ranks", c.Group.Rank, rankCount)
	case c.Timeout <= 0:
		return fmt.Errorf("timeout %v is not positive", c.Timeout)
	case c.Store == nil:
		return errors.New("there is no store with which ranks can find each other")
	}

	return nil
}

// Join connects this rank to all other ranks of a group.
//
// All ranks must call Join before the deadline of ctx, or within the timeout if ctx has none. The
// error lists late ranks. A rank that fails to join stores its error, so that Join on other ranks
// returns it. After an error, the group's ID cannot be used again.
func Join(ctx context.Context, cfg Config) (*Plane, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("joining group %s: %w", cfg.Group.ID, err)
	}

	cfg.Group = cfg.Group.WithTimeout(cfg.Timeout)
	ctx, cancel := control.WithDefaultTimeout(ctx, cfg.Group.Timeout.Get())
	defer cancel()
	j := &joiner{cfg: cfg}
	links, err := j.connect(ctx)
	if err != nil {
		return nil, cfg.Group.JoinError(err)
	}

	p := newPlane(cfg, links)
	if err := compareGroups(ctx, p); err != nil {
		err = j.peerFailureOr(ctx, err)
		closeErr := p.Close()
		return nil, errors.Join(cfg.Group.JoinError(err), closeErr)
	}

	return p, nil
}

// compareGroups checks that all ranks agree on the group's members, and exchanges the names of
// their machines.
func compareGroups(ctx context.Context, p *Plane) error {
	ownRanks := encodeRanks(p.cfg.Group)
	ownPayload := slices.Concat(ownRanks, []byte(control.HostName()))
	payloads, err := p.Exchange(ctx, driver.LaneControl, ownPayload)
	if err != nil {
		return err
	}

	var differingRanks []int
	machines := make([]string, len(payloads))
	for r, payload := range payloads {
		name, hasSameRanks := bytes.CutPrefix(payload, ownRanks)
		machines[r] = control.MachineName(string(name))
		if !hasSameRanks {
			differingRanks = append(differingRanks, p.cfg.Group.Ranks[r])
		}
	}

	p.setMachines(machines)
	if len(differingRanks) > 0 {
		err = fmt.Errorf("%s has different ranks for this group", driver.Ranks(differingRanks))
		return p.Fail(err)
	}

	return nil
}

// encodeRanks returns a text such as `"world" [0 1 2] `.
func encodeRanks(g driver.GroupConfig) []byte {
	return fmt.Appendf(nil, "%q %v ", g.ID, g.Ranks)
}

// key returns a key for the store, such as `tcp/"world"/token`.
func (c *Config) key(name string) string {
	return "tcp/" + strconv.Quote(c.Group.ID) + "/" + name
}

func (j *joiner) addressKey(groupRank int) string { return j.cfg.key(strconv.Itoa(groupRank)) }

// token is a random secret of the group that authenticates both ends of a new connection: the end
// that connects sends the first half, and the accepting end answers with the second half.
type token [32]byte

const tokenHalf = len(token{}) / 2 // in bytes

// shareToken creates and stores the token on group rank 0, and waits for it on other ranks.
func (j *joiner) shareToken(ctx context.Context) error {
	isCreator := j.cfg.Group.Rank == 0
	return control.ShareToken(ctx, j.cfg.Store, j.cfg.key("token"), isCreator, j.token[:])
}

// hello is the first message on a new connection, from the rank that connects.
type hello struct {
	rank                int            // group rank of the sender
	attempt             uint32         // number of the sender's handshake with this rank, from 1
	source, destination netip.AddrPort // as seen by the sender
}

const (
	protocolName = "symrel04" // with the version
	numberBytes  = 4
	ipBytes      = 16          // IPv6, or IPv4 mapped to IPv6
	addressBytes = ipBytes + 2 // with the port

	helloBytes = len(protocolName) + tokenHalf +
		3*numberBytes + // rank, target and attempt
		2*addressBytes // source and destination
)

// encodedHello has the layout of a hello on a connection, with little-endian numbers.
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
		TokenHalf:   [tokenHalf]byte(j.token[:]),
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

// addressOf omits the IPv6 zone, which other machines do not understand.
func addressOf(address net.Addr) netip.AddrPort {
	addrPort := address.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(addrPort.Addr().Unmap().WithZone(""), addrPort.Port())
}

// decodeHello returns ErrProtocol unless a higher-numbered rank of the group has sent the hello to
// this rank.
func (j *joiner) decodeHello(b [helloBytes]byte) (hello, error) {
	var h encodedHello
	_, _ = binary.Decode(b[:], binary.LittleEndian, &h) // cannot fail
	ownRank := uint32(j.cfg.Group.Rank)
	isProtocol := string(h.Protocol[:]) == protocolName
	isAuthentic := subtle.ConstantTimeCompare(h.TokenHalf[:], j.token[:tokenHalf]) == 1
	isForThisRank := h.Target == ownRank
	isHigherRank := ownRank < h.Rank && h.Rank < uint32(len(j.cfg.Group.Ranks))
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

// checkAddresses returns an error if the ends of a connection see different addresses. The cause is
// network address translation, which makes NCCL wait forever.
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
