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

// Config describes the group to join and this rank's end of it.
type Config struct {
	// Store is shared by all ranks of the group.
	Store driver.Store
	// Group is the group to join. Its field Check is ignored.
	Group driver.GroupConfig
	// Timeout bounds waits for ranks that do not arrive. It must be positive.
	Timeout time.Duration
	// Late configures warnings of late ranks.
	Late driver.Late
	// Host is the address of this machine on which to listen. If it is empty, Join listens on all
	// addresses, and the others try them one after the other.
	Host string
}

// Join joins a group. It is collective, and bounded by ctx or else by the timeout. A TimeoutError
// names the ranks that did not arrive. A rank that cannot join stores the reason, and the others
// fail with it. After an error this rank has no plane, and the group's id cannot be joined again.
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
	if err := connectAndCompare(ctx, p); err != nil {
		err = e.peerFailureOr(ctx, err)
		return nil, errors.Join(fmt.Errorf("joining group %s: %w", cfg.Group.Name(), err), p.Close())
	}
	return p, nil
}

// connectAndCompare connects this rank to all others and checks that all ranks have the same view
// of the group.
func connectAndCompare(ctx context.Context, p *Plane) error {
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
		return p.Fail(fmt.Errorf("%s has different ranks for this group", driver.Ranks(differ)))
	}
	return nil
}

// fingerprint encodes everything that must be equal on all ranks.
func fingerprint(g driver.GroupConfig) []byte {
	return fmt.Appendf(nil, "%q %v", g.ID, g.Ranks)
}

// token is the secret of a group. The connecting end sends the first half, the other end the
// second, so that both are authenticated before anything else is sent.
type token [32]byte

const tokenHalf = len(token{}) / 2

func (e *joining) key(name string) string {
	return "tcp/" + strconv.Quote(e.cfg.Group.ID) + "/" + name
}

func (e *joining) addressKey(r int) string { return e.key(strconv.Itoa(r)) }

// shareToken generates the token on the first rank and fetches it on the others.
func (e *joining) shareToken(ctx context.Context) error {
	leads := e.cfg.Group.Rank == 0
	return control.ShareToken(ctx, e.cfg.Store, e.key("token"), leads, e.token[:])
}

// helloBytes is the size of the first message of the connecting end: a word for protocol and
// version, the first half of the token, its group rank and the group rank that it wants to reach.
// The latter detects wrong machines, since one address can belong to several, such as that of a
// container bridge.
const helloBytes = 8 + tokenHalf + 4 + 4

const helloWord = "symrel02"

func (e *joining) hello(to int) []byte {
	b := append([]byte(helloWord), e.token[:tokenHalf]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(e.cfg.Group.Rank))
	return binary.LittleEndian.AppendUint32(b, uint32(to))
}

// decodeHello returns the group rank of the other end.
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
