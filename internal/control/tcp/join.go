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

// The ranks of a group join it by connecting to each other. Suppose that group ranks 0 and 1 are on
// the machines node0 and node1:
//
//   - Rank 0 creates a random secret, the token. It stores the token in a store that all ranks use.
//   - Each rank listens on a TCP port, and stores its addresses.
//   - Each rank connects to all lower ranks. So rank 1 looks up the addresses of rank 0 and
//     connects.
//   - Rank 1 sends a hello: it identifies itself, and proves with the first half of the token that
//     it belongs to the group. Rank 0 checks the hello, and answers with the second half.
//   - When all are connected, they check that they have the same list of ranks for the group.

// Config configures Join.
type Config struct {
	// Store is a key-value store of all ranks. Ranks find each other with it.
	Store driver.Store
	// Group describes the group and this rank. Group.Check is ignored, because the user of the plane
	// decides which calls to compare.
	Group driver.GroupConfig
	// Timeout bounds waits for other ranks, unless Group.Timeout is set. It must be positive.
	Timeout time.Duration
	Late    driver.Late // when and how to warn of late ranks
	// Host is the local address to listen on. If it is empty, Join listens on all addresses.
	Host string
}

// check returns an error if a field is invalid.
func (c *Config) check() error {
	count := len(c.Group.Ranks)
	isRankValid := c.Group.Rank >= 0 && c.Group.Rank < count
	switch {
	case !isRankValid:
		return fmt.Errorf("group rank %d is invalid in a group of %d ranks", c.Group.Rank, count)
	case c.Timeout <= 0:
		return fmt.Errorf("timeout %v is not positive", c.Timeout)
	case c.Store == nil:
		return errors.New("there is no store with which ranks can find each other")
	}

	return nil
}

// Join joins a group and returns its plane, the connections to the other ranks.
//
// All ranks of the group must call it before the deadline of ctx, or within the timeout if ctx has
// no deadline. The error lists ranks that do not arrive in time. A rank that cannot join stores its
// error for the others. After an error, the group's ID cannot be used again.
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
		err = j.peerFailureOr(ctx, err) // prefers an error that another rank has stored
		closeErr := p.Close()
		return nil, errors.Join(cfg.Group.JoinError(err), closeErr)
	}

	return p, nil
}

// compareGroups checks that all ranks have the same list of ranks for the group. It also exchanges
// the names of their machines.
func compareGroups(ctx context.Context, p *Plane) error {
	ownRanks := encodeRanks(p.cfg.Group)
	ownPayload := slices.Concat(ownRanks, []byte(control.HostName()))
	payloads, err := p.Exchange(ctx, driver.LaneControl, ownPayload)
	if err != nil {
		return err
	}

	var differingRanks []int
	machines := make([]string, len(payloads)) // by group rank
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

// encodeRanks returns a text that is equal on all ranks with the same list of ranks.
func encodeRanks(g driver.GroupConfig) []byte {
	return fmt.Appendf(nil, "%q %v ", g.ID, g.Ranks)
}

// key returns the key of one of the group's values in the store, as in `tcp/"world"/token`.
func (c *Config) key(name string) string {
	return "tcp/" + strconv.Quote(c.Group.ID) + "/" + name
}

// addressKey returns the key of the addresses of group rank r.
func (j *joiner) addressKey(r int) string { return j.cfg.key(strconv.Itoa(r)) }

// token is the secret of a group. The end that connects sends the first half of it, and the end
// that accepts the connection sends the second half.
type token [32]byte

const tokenHalf = len(token{}) / 2 // size in bytes

// shareToken sets j.token. Group rank 0 creates and stores the token, and the others wait for it.
func (j *joiner) shareToken(ctx context.Context) error {
	isCreator := j.cfg.Group.Rank == 0
	return control.ShareToken(ctx, j.cfg.Store, j.cfg.key("token"), isCreator, j.token[:])
}

// hello is the first message on a connection. The end that connects sends it.
type hello struct {
	rank int // group rank of the sender
	// target is the group rank that the sender wants to reach. A connection may reach a wrong rank
	// if machines have the same address, as with container bridges.
	target  int
	attempt uint32 // counts the sender's handshakes with this target from 1
	// source and destination are the addresses of the connection that the sender sees.
	source, destination netip.AddrPort
}

// An encoded hello consists of protocolName, the first half of the token, the numbers rank, target
// and attempt, and the addresses source and destination.
const (
	protocolName = "symrel04" // 04 is the version of the protocol
	numberBytes  = 4
	numbersBytes = 3 * numberBytes
	ipBytes      = 16          // an IPv6 address, or an IPv4 address in the form of one
	addressBytes = ipBytes + 2 // with a port
	helloBytes   = len(protocolName) + tokenHalf + numbersBytes + 2*addressBytes
)

// encodeHello encodes this rank's hello to the group rank target.
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

// addressOf converts a TCP address. It omits the IPv6 zone, which has a meaning only within one
// machine.
func addressOf(address net.Addr) netip.AddrPort {
	addrPort := address.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(addrPort.Addr().Unmap().WithZone(""), addrPort.Port())
}

// decodeHello decodes the hello of another rank. It returns ErrProtocol if the sender uses another
// protocol, does not know the token, or wants to reach another rank. It also does so unless the
// sender's rank is above this rank, because ranks connect only to lower ones.
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
	isRankValid := ownRank < rank && rank < uint32(len(j.cfg.Group.Ranks))
	if !isProtocol || !isAuthentic || !isForThisRank || !isRankValid {
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

// decodeAddress decodes the address with which b begins.
func decodeAddress(b []byte) netip.AddrPort {
	ip := netip.AddrFrom16([ipBytes]byte(b)).Unmap()
	port := binary.LittleEndian.Uint16(b[ipBytes:])
	return netip.AddrPortFrom(ip, port)
}

// checkAddresses returns an error if the two ends of a connection see different addresses, as with
// NAT (network address translation). NCCL does not work in such networks: it would wait forever.
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
