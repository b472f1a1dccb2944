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
	"strconv"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// Config configures Join.
type Config struct {
	Store driver.Store
	// Group.Check is ignored.
	Group driver.GroupConfig
	// Timeout bounds waits for other ranks, unless Group.Timeout is set. It must be positive.
	Timeout time.Duration
	Late    driver.Late
	// Host is the local address to listen on. If it is empty, Join listens on all addresses.
	Host string
}

// Join joins a group and returns its plane. All ranks of the group must call it before the
// deadline of ctx, or else within the timeout. The error lists ranks that do not arrive in time. A
// rank that cannot join stores its error for the others. After an error, the group's ID cannot be
// used again.
func Join(ctx context.Context, cfg Config) (*Plane, error) {
	if g := cfg.Group; len(g.Ranks) < 1 || g.Rank < 0 || g.Rank >= len(g.Ranks) ||
		cfg.Timeout <= 0 || cfg.Store == nil {
		return nil, fmt.Errorf("joining group %s: rank %d of %d, timeout %v or store is invalid",
			g.ID, g.Rank, len(g.Ranks), cfg.Timeout)
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
		return nil, errors.Join(cfg.Group.JoinError(err), p.Close())
	}
	return p, nil
}

// compareGroups checks that all ranks have the same list of ranks for the group. It also exchanges
// the names of their machines.
func compareGroups(ctx context.Context, p *Plane) error {
	ownPayload := encodeRanks(p.cfg.Group) // followed by the name of the machine
	payloads, err := p.Exchange(ctx, driver.LaneControl, append(ownPayload, control.HostName()...))
	if err != nil {
		return err
	}
	var differingRanks []int
	machines := make([]string, len(payloads))
	for r, payload := range payloads {
		name, isSame := bytes.CutPrefix(payload, ownPayload)
		machines[r] = control.MachineName(string(name))
		if !isSame {
			differingRanks = append(differingRanks, p.cfg.Group.Ranks[r])
		}
	}
	p.setMachines(machines)
	if len(differingRanks) > 0 {
		return p.Fail(fmt.Errorf("%s has different ranks for this group", driver.Ranks(differingRanks)))
	}
	return nil
}

func encodeRanks(g driver.GroupConfig) []byte {
	return fmt.Appendf(nil, "%q %v ", g.ID, g.Ranks)
}

// token is a group's secret. To prove that they know it, the connecting end of a connection sends
// the first half, and the accepting end the second.
type token [32]byte

const tokenHalf = len(token{}) / 2

// key returns the key of one of the group's values in the store.
func (c *Config) key(name string) string {
	return "tcp/" + strconv.Quote(c.Group.ID) + "/" + name
}

func (j *joiner) addressKey(r int) string { return j.cfg.key(strconv.Itoa(r)) }

func (j *joiner) shareToken(ctx context.Context) error {
	isCreator := j.cfg.Group.Rank == 0
	return control.ShareToken(ctx, j.cfg.Store, j.cfg.key("token"), isCreator, j.token[:])
}

// hello is the first message on a connection. It identifies the connecting end.
type hello struct {
	// rank is the group rank of the connecting end, and target that of the end that it wants to
	// reach. A connection may reach a wrong rank if machines share an address, as with container
	// bridges.
	rank, target int
	attempt      uint32 // counts handshakes with this target from 1
	// source and destination are the addresses that the connecting end sees.
	source, destination netip.AddrPort
}

const (
	protocolName = "symrel04" // with the version of the protocol
	addressBytes = 16 + 2     // an IPv6 address and a port
	// helloBytes is the size of an encoded hello: protocolName, the first half of the token, and the
	// fields of hello.
	helloBytes = len(protocolName) + tokenHalf + 3*4 + 2*addressBytes
)

func (j *joiner) encodeHello(target int, attempt uint32, conn net.Conn) []byte {
	b := append([]byte(protocolName), j.token[:tokenHalf]...)
	for _, n := range []uint32{uint32(j.cfg.Group.Rank), uint32(target), attempt} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	for _, address := range []net.Addr{conn.LocalAddr(), conn.RemoteAddr()} {
		addrPort := addressOf(address)
		ip := addrPort.Addr().As16()
		b = binary.LittleEndian.AppendUint16(append(b, ip[:]...), addrPort.Port())
	}
	return b
}

// addressOf returns a TCP address without the IPv6 zone, which is meaningful only on one machine.
func addressOf(address net.Addr) netip.AddrPort {
	addrPort := address.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(addrPort.Addr().Unmap().WithZone(""), addrPort.Port())
}

// decodeHello decodes a hello. It returns ErrProtocol if the sender does not know the token, if it
// wants to reach another rank, or if its rank is not above this rank.
func (j *joiner) decodeHello(b [helloBytes]byte) (hello, error) {
	half, rest := b[len(protocolName):][:tokenHalf], b[len(protocolName)+tokenHalf:]
	isAuthentic := subtle.ConstantTimeCompare(half, j.token[:tokenHalf]) == 1
	rank, target := binary.LittleEndian.Uint32(rest), binary.LittleEndian.Uint32(rest[4:])
	ownRank := uint32(j.cfg.Group.Rank)
	isProtocol := string(b[:len(protocolName)]) == protocolName
	isRankValid := ownRank < rank && rank < uint32(len(j.cfg.Group.Ranks))
	if !isProtocol || !isAuthentic || target != ownRank || !isRankValid {
		return hello{}, ErrProtocol
	}
	h := hello{rank: int(rank), target: int(target), attempt: binary.LittleEndian.Uint32(rest[8:])}
	for i, address := range []*netip.AddrPort{&h.source, &h.destination} {
		part := rest[3*4+i*addressBytes:]
		ip := netip.AddrFrom16([16]byte(part)).Unmap()
		*address = netip.AddrPortFrom(ip, binary.LittleEndian.Uint16(part[16:]))
	}
	return h, nil
}

// checkAddresses returns an error if the two ends of a connection see different addresses, as with
// NAT (network address translation). NCCL would then wait forever.
func (j *joiner) checkAddresses(h *hello, conn *net.TCPConn) error {
	source, destination := addressOf(conn.RemoteAddr()), addressOf(conn.LocalAddr())
	if h.source == source && h.destination == destination {
		return nil
	}
	return fmt.Errorf("%s has connected from %v to %v, but %s on %s sees a connection from %v to "+
		"%v: %w", j.describeRank(h.rank), h.source, h.destination,
		driver.Ranks([]int{j.cfg.Group.Ranks[j.cfg.Group.Rank]}), control.HostName(), source,
		destination, errTranslated)
}

var errTranslated = errors.New("the network between the machines translates addresses (NAT or a " +
	"proxy); use a network in which machines can reach each other at their own addresses")
