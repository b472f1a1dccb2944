package nccl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// levels holds the communicators of the two-level path, for groups on several machines. It uses
// symmem's own kernels within each machine and NCCL between machines.
type levels struct {
	machineLayout
	machineLevel      *communicator // connects the ranks of this machine
	crossMachineLevel *communicator // connects the ranks with the same local rank on every machine
}

// machineLayout describes a group with the same number of consecutive ranks on every machine.
type machineLayout struct {
	machines, ranksPerMachine int
	machineIndex              int // identifies this rank's machine
	localIndex                int // identifies this rank on its machine
}

// newMachineLayout returns the layout, or the same reason on all ranks why there is none.
func newMachineLayout(members []*member, rank int) (l machineLayout, reason string) {
	var names []string
	for _, m := range members {
		if len(names) == 0 || names[len(names)-1] != m.Machine {
			names = append(names, m.Machine)
		}
	}

	l.machines = len(names)
	l.ranksPerMachine = len(members) / l.machines
	switch {
	case l.machines == 1:
		return l, "the ranks are on one machine"
	case l.machines == len(members) && l.machines == countMachines(members):
		return l, "each machine has one rank"
	}

	for i, m := range members {
		if l.machines != countMachines(members) || len(members)%l.machines != 0 ||
			m.Machine != names[i/l.ranksPerMachine] {
			return l, "the machines do not have the same number of consecutive ranks each"
		}
	}

	l.machineIndex, l.localIndex = rank/l.ranksPerMachine, rank%l.ranksPerMachine
	return l, ""
}

// config returns the configuration of a level. ranks lists its members by their group ranks, and
// rank is this rank's number in the level.
func (l *machineLayout) config(
	parent *driver.GroupConfig, name string, rank int, ranks []int,
) driver.GroupConfig {
	cfg := *parent
	cfg.ID, cfg.Rank, cfg.Ranks = parent.ID+name, rank, parent.World(ranks)
	cfg.Title = parent.Name()
	cfg.Check, cfg.Strict, cfg.Machines, cfg.Formula = false, false, nil, driver.AnyFormula
	return cfg
}

// machineLevelConfig requires a formula, so that sums do not depend on which kernel computes them.
func (l *machineLayout) machineLevelConfig(parent *driver.GroupConfig) driver.GroupConfig {
	name := fmt.Sprintf(", machine %d", l.machineIndex)
	cfg := l.config(parent, name, l.localIndex, l.machineRanks())
	cfg.Formula = driver.RankOrder
	return cfg
}

func (l *machineLayout) machineRanks() []int {
	ranks := make([]int, l.ranksPerMachine)
	for i := range ranks {
		ranks[i] = l.machineIndex*l.ranksPerMachine + i
	}

	return ranks
}

func (l *machineLayout) crossMachineConfig(parent *driver.GroupConfig) driver.GroupConfig {
	name := fmt.Sprintf(", rank %d of each machine", l.localIndex)
	return l.config(parent, name, l.machineIndex, l.crossMachineRanks())
}

func (l *machineLayout) crossMachineRanks() []int {
	ranks := make([]int, l.machines)
	for i := range ranks {
		ranks[i] = i*l.ranksPerMachine + l.localIndex
	}

	return ranks
}

type twoLevel struct {
	group          *communicator
	levels         atomic.Pointer[levels]
	noLevelsReason atomic.Pointer[string]
}

func (t *twoLevel) noTwoLevelReason() string {
	switch reason := t.noLevelsReason.Load(); {
	case t.levels.Load() != nil:
		return ""
	case reason != nil:
		return *reason
	case len(t.group.cfg.Machines) == 0:
		return "the ranks are on one machine"
	}

	return "neither the tuning table nor the path of the group asks for two levels"
}

func (t *twoLevel) UseTwoLevels(ctx context.Context) error {
	c := t.group
	if t.levels.Load() != nil || t.noLevelsReason.Load() != nil {
		return nil
	}

	if c.device.streams.Capturing.Load() > 0 {
		return driver.ErrCapturing
	}

	ctx, stop := untilFault(ctx, c)
	defer stop()
	l := &levels{}
	reason := ""
	if l.machineLayout, reason = newMachineLayout(c.members, c.cfg.Rank); reason == "" {
		reason = t.formulaReason()
	}

	if reason == "" {
		var err error
		if reason, err = l.connect(ctx, c); err != nil {
			return c.plane.Fail(errors.Join(err, l.close()))
		}
	}

	if reason != "" {
		t.noLevelsReason.Store(&reason)
		return l.close()
	}

	l.linkFailures(c)
	t.levels.Store(l)
	return nil
}

// untilFault returns a context that is canceled when the group fails. Until stop is called, it also
// makes the group fail if a peer has failed.
func untilFault(ctx context.Context, c *communicator) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		defer cancel()
		check := time.NewTicker(checkInterval)
		defer check.Stop()
		for !c.plane.PeerFailed() {
			select {
			case <-check.C:
			case <-c.Failed():
				return
			case <-ctx.Done():
				return
			}
		}

		_ = c.plane.Fail(c.plane.PeerFault("connecting the two levels of group " + c.cfg.Name()))
	})
	return ctx, func() {
		cancel()
		watch.Wait()
	}
}

func (t *twoLevel) formulaReason() string {
	formula := t.group.cfg.Formula
	if formula == driver.AnyFormula {
		return ""
	}

	return fmt.Sprintf("the group requires the formula %v, which the two-level path does not "+
		"implement", formula)
}

func (t *twoLevel) registerMachineWindow(ctx context.Context, w *window) error {
	l := t.levels.Load()
	if l == nil {
		return nil
	}

	if err := l.register(ctx, w); err != nil {
		return t.group.plane.Fail(err)
	}

	return nil
}

func (t *twoLevel) suspendTargets() []suspendTarget {
	l := t.levels.Load()
	if l == nil {
		return nil
	}

	return []suspendTarget{
		{&l.machineLevel.suspender, l.machineRanks()},
		{&l.crossMachineLevel.suspender, l.crossMachineRanks()},
	}
}

func (t *twoLevel) close() error {
	if l := t.levels.Load(); l != nil {
		return l.close()
	}

	return nil
}

// connect connects both levels and registers the group's segments. If that is impossible, it
// returns the same reason on all ranks.
func (l *levels) connect(ctx context.Context, c *communicator) (reason string, err error) {
	if l.machineLevel, err = l.join(ctx, c, l.machineLevelConfig(&c.cfg)); err != nil {
		return "", err
	}

	// Agree now, so that no rank waits in crossMachineLevel for a machine without a direct path.
	reason, err = l.agree(ctx, c, l.machineLevel.direct.unavailableReason)
	if reason != "" || err != nil {
		return reason, err
	}

	if l.crossMachineLevel, err = l.join(ctx, c, l.crossMachineConfig(&c.cfg)); err != nil {
		return "", err
	}

	c.registrar.mu.Lock()
	windows := slices.SortedFunc(maps.Values(c.registrar.windows), compareWindowKeys)
	c.registrar.mu.Unlock()
	for _, w := range windows {
		if err := l.register(ctx, w); err != nil {
			return "", err
		}
	}

	return l.agree(ctx, c, "")
}

func (l *levels) join(
	ctx context.Context, c *communicator, cfg driver.GroupConfig,
) (*communicator, error) {
	joined, err := driver.Device(c.device).Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}

	level := joined.(*communicator)
	level.isLevel = true
	level.teardown.parent.Store(&parentGroup{c.group, c.plane, c.teardown.begin})
	return level, nil
}

// agree returns the reason of the lowest rank that has a reason for not using two levels.
func (l *levels) agree(ctx context.Context, c *communicator, own string) (string, error) {
	all, err := c.plane.Exchange(ctx, driver.LaneControl, []byte(own))
	if err != nil {
		return "", err
	}

	for rank, reason := range all {
		if len(reason) > 0 {
			return fmt.Sprintf("rank %d has no direct path inside its machine: %s", c.cfg.Ranks[rank],
				control.Printable(string(reason))), nil
		}
	}

	return "", nil
}

// register registers a window's segment with machineLevel, for symmem's own kernels.
func (l *levels) register(ctx context.Context, w *window) error {
	intraWindow, err := l.machineLevel.Register(ctx, w.key, w.segment)
	if err != nil {
		return err
	}

	w.machineWindow = intraWindow.(*window)
	return w.agreeOnMachineWindow(ctx)
}

// agreeOnMachineWindow disables a machineWindow that does not work on every machine, because ranks
// could otherwise choose different paths for a call.
func (w *window) agreeOnMachineWindow(ctx context.Context) error {
	own := []byte{0}
	if w.machineWindow.isMappedEverywhere {
		own[0] = 1
	}

	all, err := w.registrar.plane.Exchange(ctx, driver.LaneControl, own)
	if err != nil {
		return err
	}

	for rank, mapped := range all {
		if len(mapped) == 1 && mapped[0] == 1 {
			continue
		}

		w.machineWindow.isMappedEverywhere = false
		if w.machineWindow.notMappedReason == "" {
			w.machineWindow.notMappedReason = fmt.Sprintf(
				"rank %d is on a machine where memory was not mapped", w.registrar.cfg.Ranks[rank])
		}
	}

	return nil
}

// linkFailures makes the levels fail if the group fails. teardown.failParent does the opposite.
func (l *levels) linkFailures(c *communicator) {
	for _, level := range []*communicator{l.machineLevel, l.crossMachineLevel} {
		go func() {
			select {
			case <-level.stages.groupEnded:
				// The level may have failed before it was linked with the group.
				_ = level.teardown.failParent()
			case <-c.stages.groupEnded:
				if cause := c.plane.Cause(); !errors.Is(cause, driver.ErrClosed) {
					level.Abort(cmp.Or(cause, driver.ErrAborted))
				}
			}
		}()
	}
}

func (l *levels) close() error {
	var errs []error
	for _, level := range []*communicator{l.machineLevel, l.crossMachineLevel} {
		if level != nil {
			errs = append(errs, level.Close())
		}
	}

	return errors.Join(errs...)
}
