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
	count := len(c.Group.Ranks)
	switch {
	case c.Group.Rank < 0 || c.Group.Rank >= count:
		return fmt.Errorf("group rank %d is invalid in a group of %d ranks", c.Group.Rank, count)
	case c.Timeout <= 0:
		return fmt.Errorf("timeout %v is not positive", c.Timeout)
	case c.Store == nil:
		return errors.New("there is no store with which ranks can find each other")
	}

	return nil
}

// Join connects this rank to all other ranks of a group.
//
// All ranks must call it before the deadline of ctx, by default within the timeout. The error lists
// ranks that do not arrive in time. A rank that cannot join stores its error for the others. After
// an error, the group's ID cannot be used again.
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
		name, isSame := bytes.CutPrefix(payload, ownRanks)
		machines[r] = control.MachineName(string(name))
		if !isSame {
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

func encodeRanks(g driver.GroupConfig) []byte {
	return fmt.Appendf(nil, "%q %v ", g.ID, g.Ranks)
}

// key returns a key for the store, such as `tcp/"world"/token`.
func (c *Config) key(name string) string {
	return "tcp/" + strconv.Quote(c.Group.ID) + "/" + name
}

func (j *joiner) addressKey(rank int) string { return j.cfg.key(strconv.Itoa(rank)) }

// token is a random secret of the group, with which the two ends of a new connection authenticate
// each other: the end that connects sends the first half, and the accepting end the second half.
type token [32]byte

const tokenHalf = len(token{}) / 2 // in bytes

// shareToken creates and stores the token on group rank 0, and waits for it on other ranks.
func (j *joiner) shareToken(ctx context.Context) error {
	isCreator := j.cfg.Group.Rank == 0
	return control.ShareToken(ctx, j.cfg.Store, j.cfg.key("token"), isCreator, j.token[:])
}

// hello is the first message from the rank that connects.
type hello struct {
	rank int // group rank of the sender
	// target is the group rank to reach. A connection may reach another rank, because machines may
	// have the same address, for example on container bridges.
	target              int
	attempt             uint32         // number of the handshake with target, from 1
	source, destination netip.AddrPort // as seen by the sender
}

// An encoded hello consists of protocolName, the first half of the token and the fields of hello.
const (
	protocolName = "symrel04" // with the version
	numberBytes  = 4
	numbersBytes = 3 * numberBytes // rank, target and attempt
	ipBytes      = 16              // IPv6, or IPv4 mapped to IPv6
	addressBytes = ipBytes + 2     // with the port
	helloBytes   = len(protocolName) + tokenHalf + numbersBytes + 2*addressBytes
)

func (j *joiner) encodeHello(target int, attempt uint32, conn net.Conn) []byte {
	b := append([]byte(protocolName), j.token[:tokenHalf]...)
	for _, n := range []uint32{uint32(j.cfg.Group.Rank), uint32(target), attempt} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}

	for _, address := range []net.Addr{conn.LocalAddr(), conn.RemoteAddr()} {
		addrPort := addressOf(address)
		ip := addrPort.Addr().As16()
		b = append(b, ip[:]...)
		b = binary.LittleEndian.AppendUint16(b, addrPort.Port())
	}

	return b
}

// addressOf omits the IPv6 zone, which other machines do not understand.
func addressOf(address net.Addr) netip.AddrPort {
	addrPort := address.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(addrPort.Addr().Unmap().WithZone(""), addrPort.Port())
}

// decodeHello returns ErrProtocol if the hello is not from a higher-numbered rank of the group, or
// is for another rank.
func (j *joiner) decodeHello(b [helloBytes]byte) (hello, error) {
	name, rest := b[:len(protocolName)], b[len(protocolName):]
	half, fields := rest[:tokenHalf], rest[tokenHalf:]
	rank := binary.LittleEndian.Uint32(fields)
	target := binary.LittleEndian.Uint32(fields[numberBytes:])
	attempt := binary.LittleEndian.Uint32(fields[2*numberBytes:])
	source, destination := fields[numbersBytes:], fields[numbersBytes+addressBytes:]

	ownRank := uint32(j.cfg.Group.Rank)
	isProtocol := string(name) == protocolName
	isAuthentic := subtle.ConstantTimeCompare(half, j.token[:tokenHalf]) == 1
	isForThisRank := target == ownRank
	isHigherRank := ownRank < rank && rank < uint32(len(j.cfg.Group.Ranks))
	isAccepted := isProtocol && isAuthentic && isForThisRank && isHigherRank
	if !isAccepted {
		return hello{}, ErrProtocol
	}

	return hello{
		rank:        int(rank),
		target:      int(target),
		attempt:     attempt,
		source:      decodeAddress(source),
		destination: decodeAddress(destination),
	}, nil
}

func decodeAddress(b []byte) netip.AddrPort {
	ip := netip.AddrFrom16([ipBytes]byte(b)).Unmap()
	port := binary.LittleEndian.Uint16(b[ipBytes:])
	return netip.AddrPortFrom(ip, port)
}

// checkAddresses detects network address translation, with which NCCL would wait forever. The two
// ends of a connection then see different addresses.
func (j *joiner) checkAddresses(h *hello, conn *net.TCPConn) error {
	source, destination := addressOf(conn.RemoteAddr()), addressOf(conn.LocalAddr())
	if h.source == source && h.destination == destination {
		return nil
	}

	sender := j.describeRank(h.rank)
	ownRank := driver.Ranks([]int{j.cfg.Group.Ranks[j.cfg.Group.Rank]})
	return fmt.Errorf(
		"%s has connected from %v to %v, but %s on %s sees a connection from %v to %v: %w",
		sender, h.source, h.destination,
		ownRank, control.HostName(), source, destination, errTranslated)
}

var errTranslated = errors.New("the network between the machines translates addresses (NAT or a " +
	"proxy); use a network in which machines can reach each other at their own addresses")
