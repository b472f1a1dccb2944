package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// Config configures Join.
type Config struct {
	// Store is shared by all ranks, which use it to find each other.
	Store driver.Store
	// Group describes the group and this rank. Group.Check is ignored: the user of the Plane decides
	// which calls to compare.
	Group driver.GroupConfig
	// Timeout applies if Group.Timeout is nil. It must be positive.
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
// All ranks must call Join before the deadline of ctx, or within Group.Timeout if ctx has none. The
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

// compareGroups checks that all ranks agree on the group's members, and learns the name of each
// member's machine.
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
		machine, isSameGroup := bytes.CutPrefix(payload, ownRanks)
		machines[r] = control.MachineName(string(machine))
		if !isSameGroup {
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

// encodeRanks returns the group's ID and ranks with a final space, such as `"world" [0 1 2] `.
func encodeRanks(g driver.GroupConfig) []byte {
	return fmt.Appendf(nil, "%q %v ", g.ID, g.Ranks)
}

// key returns a key for the store, such as `tcp/"world"/token`.
func (c *Config) key(name string) string {
	return "tcp/" + strconv.Quote(c.Group.ID) + "/" + name
}
