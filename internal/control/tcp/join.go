package tcp

import (
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// Config says what to join.
type Config struct {
	// Store is shared by all ranks of the group.
	Store driver.Store
	// Group is the group; Check is not looked at.
	Group driver.GroupConfig
	// Timeout bounds waits for ranks that do not come. It is positive.
	Timeout time.Duration
	// Late says when to warn of ranks that are late.
	Late driver.Late
	// Host is the address of this machine at which to listen; empty means all of its addresses,
	// which the others try one after the other.
	Host string
}

// Join joins a group. It is collective, bounded by ctx or else by the timeout; a TimeoutError names
// the ranks that did not come. A rank that cannot join stores why, and the others fail with that.
// On an error no plane is left on this rank, and nobody can join a group of this id any more.
func Join(ctx context.Context, cfg Config) (*Plane, error) {
	if g := cfg.Group; len(g.Ranks) < 1 || g.Rank < 0 || g.Rank >= len(g.Ranks) ||
		cfg.Timeout <= 0 || cfg.Store == nil {
		return nil, fmt.Errorf("joining group %s: rank %d of %d, timeout %v: invalid",
			g.ID, g.Rank, len(g.Ranks), cfg.Timeout)
	}
	ctx, cancel := control.Bounded(ctx, cfg.Timeout)
	defer cancel()
	e := &joining{cfg: cfg}
	links, err := e.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("joining group %s: %w", cfg.Group.Name(), err)
	}
	p := newPlane(cfg, links)
	if err := p.greet(ctx); err != nil {
		err = e.peerFailureOr(ctx, err)
		return nil, errors.Join(fmt.Errorf("joining group %s: %w", cfg.Group.Name(), err), p.Close())
	}
	return p, nil
}

// greet meets the others once. After it everybody is connected to everybody, and means the same
// group.
func (p *Plane) greet(ctx context.Context) error {
	mine := fingerprint(p.cfg.Group)
	all, err := p.Exchange(ctx, driver.LaneControl, mine)
	if err != nil {
		return err
	}
	var differ []int
	for r, theirs := range all {
		if string(theirs) != string(mine) {
			differ = append(differ, p.cfg.Group.Ranks[r])
		}
	}
	if len(differ) > 0 {
		return p.Fail(fmt.Errorf("%s means other ranks by it", driver.Ranks(differ)))
	}
	return nil
}

// fingerprint stands for everything that must be alike on all ranks.
func fingerprint(g driver.GroupConfig) []byte {
	return fmt.Appendf(nil, "%q %v", g.ID, g.Ranks)
}

// token is the secret of a group. The end that connects sends the first half, the other end the
// second, so that each has authenticated the other before anything else is sent.
type token [32]byte

const tokenHalf = len(token{}) / 2

func (e *joining) key(name string) string {
	return "tcp/" + strconv.Quote(e.cfg.Group.ID) + "/" + name
}

func (e *joining) addressKey(r int) string { return e.key(strconv.Itoa(r)) }

// shareToken makes the token on the first rank and fetches it on the others.
func (e *joining) shareToken(ctx context.Context) error {
	leads := e.cfg.Group.Rank == 0
	return control.ShareToken(ctx, e.cfg.Store, e.key("token"), leads, e.token[:])
}

// hello is what the connecting end sends first: a word that names protocol and version, the first
// half of the token, its own group rank and that of whom it wants to reach. The same address can
// be that of different machines, such as that of a bridge for containers.
const helloBytes = 8 + tokenHalf + 4 + 4

const helloWord = "symrel02"

func (e *joining) hello(to int) []byte {
	b := append([]byte(helloWord), e.token[:tokenHalf]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(e.cfg.Group.Rank))
	return binary.LittleEndian.AppendUint32(b, uint32(to))
}

// decodeHello returns the group rank of who is at the other end.
func (e *joining) decodeHello(b [helloBytes]byte) (int, error) {
	shown := b[len(helloWord) : len(helloWord)+tokenHalf]
	known := subtle.ConstantTimeCompare(shown, e.token[:tokenHalf]) == 1
	from := binary.LittleEndian.Uint32(b[len(helloWord)+tokenHalf:])
	to := binary.LittleEndian.Uint32(b[len(helloWord)+tokenHalf+4:])
	own := uint32(e.cfg.Group.Rank)
	if string(b[:len(helloWord)]) != helloWord || !known ||
		to != own || from <= own || from >= uint32(len(e.cfg.Group.Ranks)) {
		return 0, ErrProtocol
	}
	return int(from), nil
}
