package host

import (
	"runtime"
	"sync/atomic"
	"testing"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/internal/spin"
)

// TestRankThatWaitsLongSleepsAndIsWoken lets rank 1 wait until its bell says that it sleeps, and
// only then lets rank 0 come.
func TestRankThatWaitsLongSleepsAndIsWoken(t *testing.T) {
	waits := map[string]func(c driver.Communicator, s driver.Stream) error{
		"in a collective": func(c driver.Communicator, s driver.Stream) error {
			p, err := c.Prepare(driver.Call{Operation: driver.Barrier})
			if err != nil {
				return err
			}
			if err := c.Launch(s, p); err != nil {
				return err
			}
			return s.Synchronize(t.Context())
		},
		"in an exchange": func(c driver.Communicator, _ driver.Stream) error {
			_, err := c.Exchange(t.Context(), driver.LaneControl, nil)
			return err
		},
	}
	for row, wait := range waits {
		t.Run(row, func(t *testing.T) {
			d := newDuo(t)
			d.connect()
			sleeper := d.groups[1].(*communicator)
			for _, err := range d.both(func(rank int) error {
				s, err := d.devices[rank].NewStream()
				if err != nil {
					return err
				}
				for rank == 0 && atomic.LoadInt32(&sleeper.me.bell.sleeping) == 0 {
					runtime.Gosched()
				}
				if err := wait(d.groups[rank], s); err != nil {
					return err
				}
				return s.Close()
			}) {
				check(t, err)
			}
			if n := atomic.LoadInt32(&sleeper.me.bell.sleeping); n != 0 {
				t.Errorf("the bell says that %d threads sleep", n)
			}
		})
	}
}

// TestBellIsRungForSleepersOnly counts the rings of a bell.
func TestBellIsRungForSleepersOnly(t *testing.T) {
	d := newDuo(t)
	d.connect()
	bell := &d.groups[1].(*communicator).me.bell
	ringer := d.groups[0].(*communicator)
	before := atomic.LoadUint32(&bell.word)
	ringer.ring()
	if after := atomic.LoadUint32(&bell.word); after != before {
		t.Errorf("the bell of a rank that does not sleep was rung %d times", after-before)
	}
	atomic.AddInt32(&bell.sleeping, 1)
	ringer.ring()
	atomic.AddInt32(&bell.sleeping, -1)
	if after := atomic.LoadUint32(&bell.word); after != before+1 {
		t.Errorf("the bell of a sleeper was rung %d times, want once", after-before)
	}
}

func TestRankIsAbsentUntilItPostsTheStep(t *testing.T) {
	d := newDuo(t)
	d.connect()
	c := d.groups[0].(*communicator)
	c.step++
	if n := c.absent(c.others); n != 1 {
		t.Errorf("%d ranks are absent of one that has posted nothing", n)
	}
	spin.StoreRelease64(&c.others[0].lines[c.step&1].step, c.step)
	if n := c.absent(c.others); n != 0 {
		t.Errorf("%d ranks are absent after the only one has posted", n)
	}
}

// TestACallersThreadIsKeptBriefly also where the yields that it may use up take very long.
func TestACallersThreadIsKeptBriefly(t *testing.T) {
	d := newDuo(t)
	d.connect()
	c := d.groups[0].(*communicator)
	c.step++
	c.budget.brief = 1 << 40
	for _, poll := range []bool{false, true} {
		if c.comesSoon(c.others, poll) {
			t.Errorf("a step that nobody has posted has come, polled: %v", poll)
		}
	}
}

func TestWaitTakesBackOnlyItsOwnNotice(t *testing.T) {
	d := newDuo(t)
	d.connect()
	c := d.groups[0].(*communicator)
	collective := &waiting{collective: 3, operation: driver.AllReduce}
	exchange := &waiting{exchange: true}
	c.publishWait(collective, 1)
	c.publishWait(exchange, 2)
	c.concealWait(&waiting{})
	c.concealWait(exchange)
	board := &c.me.board
	if n := spin.LoadAcquire64(&board.inCollective); n != 3 {
		t.Errorf("the board says collective %d, want 3", n)
	}
	if n := spin.LoadAcquire64(&board.inExchange); n != 0 {
		t.Errorf("the board says exchange %d, want none", n)
	}
	later := &waiting{collective: 7, operation: driver.AllGather}
	middle := &waiting{collective: 5}
	c.publishWait(later, 5)
	c.publishWait(middle, 6)
	n, o := spin.LoadAcquire64(&board.inCollective), spin.LoadAcquire64(&board.operation)
	if n != 7 || driver.Operation(o) != driver.AllGather {
		t.Errorf("the board says %v %d, want the last of three", driver.Operation(o), n)
	}
	c.concealWait(middle)
	c.concealWait(later)
	if n := spin.LoadAcquire64(&board.inCollective); n != 3 {
		t.Errorf("the board says collective %d, want 3 again", n)
	}
	c.concealWait(collective)
	if n := spin.LoadAcquire64(&board.inCollective); n != 0 {
		t.Errorf("the board says collective %d, want none", n)
	}
}

func TestCollectiveOnAnIdleStreamAllocatesNothing(t *testing.T) {
	d, err := Backend{}.Open(t.Context(), driver.Config{
		Size: 1, Store: &drivertest.Store{}, Timeout: fleetPatience,
	})
	check(t, err)
	defer func() { check(t, d.Close()) }()
	c, err := d.Connect(t.Context(), driver.GroupConfig{ID: "alone", Ranks: []int{0}})
	check(t, err)
	defer func() { check(t, c.Close()) }()
	s, err := d.NewStream()
	check(t, err)
	defer func() { check(t, s.Close()) }()
	p, err := c.Prepare(driver.Call{Operation: driver.Barrier})
	check(t, err)
	if n := testing.AllocsPerRun(1000, func() {
		if err := c.Launch(s, p); err != nil {
			t.Error(err)
		}
		if err := s.Synchronize(t.Context()); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("a collective allocates %v times", n)
	}
}
