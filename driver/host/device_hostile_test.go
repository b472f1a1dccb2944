package host

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/internal/handoff"
	"symmem/internal/sys"
)

// duo holds a world of two ranks in this process.
type duo struct {
	t       *testing.T
	ctx     context.Context
	store   *drivertest.Store
	devices [2]*Device
	groups  [2]driver.Communicator
}

func newDuo(t *testing.T) *duo {
	t.Helper()
	return newDuoWithWaitHook(t, nil)
}

// newDuoWithWaitHook is like newDuo, but rank 0 polls interrupted while it waits.
func newDuoWithWaitHook(t *testing.T, interrupted func() error) *duo {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), processTimeout)
	d := &duo{t: t, ctx: ctx, store: &drivertest.Store{}}
	for rank := range d.devices {
		d.devices[rank] = d.open(rank, interrupted)
		interrupted = nil
	}
	t.Cleanup(func() {
		defer cancel()
		for rank, device := range d.devices {
			if d.groups[rank] != nil {
				check(t, d.groups[rank].Close())
			}
			check(t, device.Close())
		}
	})
	return d
}

func (d *duo) open(rank int, interrupted func() error) *Device {
	d.t.Helper()
	device, err := Backend{}.Open(d.ctx, driver.Config{
		Rank: rank, Size: 2, Store: d.store, Timeout: processTimeout, Interrupted: interrupted,
	})
	check(d.t, err)
	return device.(*Device)
}

// both calls f concurrently for both ranks and returns the errors, indexed by rank.
func (d *duo) both(f func(rank int) error) [2]error {
	other := make(chan error)
	go func() { other <- f(1) }()
	err := f(0)
	return [2]error{err, <-other}
}

func (d *duo) connect() {
	d.t.Helper()
	for _, err := range d.both(func(rank int) (err error) {
		d.groups[rank], err = d.devices[rank].Connect(d.ctx, duoGroup(rank))
		return err
	}) {
		check(d.t, err)
	}
}

func duoGroup(rank int) driver.GroupConfig {
	return driver.GroupConfig{ID: "duo", Ranks: []int{0, 1}, Rank: rank, Check: true}
}

// segment maps a segment of the given number of granules on a rank.
func (d *duo) segment(rank int, granules int64) *segment {
	d.t.Helper()
	arena, err := d.devices[rank].NewArena(granules * granularity)
	check(d.t, err)
	s, err := arena.Map(0, granules*granularity)
	check(d.t, err)
	d.t.Cleanup(func() {
		check(d.t, s.Unmap())
		check(d.t, arena.Close())
	})
	return s.(*segment)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSocketRefusesUnknownClientsWithoutBlocking(t *testing.T) {
	d := newDuo(t)
	address := d.devices[0].machine.Address()
	badToken, err := handoff.Dial(d.ctx, address, handoff.Token{1})
	check(t, err)
	defer badToken.Close()
	garbage, err := net.Dial("unix", address)
	check(t, err)
	defer garbage.Close()
	_, err = garbage.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 100)))
	check(t, err)
	incomplete, err := net.Dial("unix", address)
	check(t, err)
	defer incomplete.Close()
	_, err = incomplete.Write([]byte("SM01"))
	check(t, err)

	d.connect()
	s := [2]*segment{d.segment(0, 1), d.segment(1, 1)}
	key := driver.SegmentKey{Pool: 5, Ordinal: 6}
	for _, err := range d.both(func(rank int) error {
		_, err := d.groups[rank].Register(d.ctx, key, s[rank])
		return err
	}) {
		check(t, err)
	}
	validKey := d.groups[0].(*communicator).fileKey(key)
	if _, err := badToken.Fetch(d.ctx, validKey); !errors.Is(err, handoff.ErrRefused) {
		t.Errorf("Fetch with a wrong token: got %v, want ErrRefused", err)
	}
	// The read may return ECONNRESET instead of EOF, because the server has not read the garbage.
	if n, err := garbage.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("reply to garbage: got %d bytes, error %v; want an error", n, err)
	}
}

func TestSmallSegmentFileIsErrorOnBothRanks(t *testing.T) {
	d := newDuo(t)
	d.connect()
	s := [2]*segment{d.segment(0, 2), d.segment(1, 2)}
	small, err := sys.Memfd("small", granularity)
	check(t, err)
	s[0].file, small = small, s[0].file
	defer small.Close()
	key := driver.SegmentKey{Pool: 1}
	for rank, err := range d.both(func(rank int) error {
		_, err := d.groups[rank].Register(d.ctx, key, s[rank])
		return err
	}) {
		if err == nil || !strings.Contains(err.Error(), "2097152 bytes instead of 4194304") {
			t.Errorf("rank %d: got %v, want an error with both sizes", rank, err)
		}
		if n := len(d.groups[rank].(*communicator).windows); n != 0 {
			t.Errorf("rank %d has %d windows after the error, want 0", rank, n)
		}
	}
}

func TestOpenRejectsInvalidConfiguration(t *testing.T) {
	good := driver.Config{Rank: 0, Size: 1, Store: &drivertest.Store{}, Timeout: time.Second}
	for name, change := range map[string]func(*driver.Config){
		"rank below":  func(c *driver.Config) { c.Rank = -1 },
		"rank above":  func(c *driver.Config) { c.Rank = 1 },
		"no ranks":    func(c *driver.Config) { c.Size = 0 },
		"no store":    func(c *driver.Config) { c.Store = nil },
		"no deadline": func(c *driver.Config) { c.Timeout = 0 },
	} {
		cfg := good
		change(&cfg)
		if d, err := (Backend{}).Open(t.Context(), cfg); err == nil {
			t.Errorf("%s: Open returned no error", name)
			check(t, d.Close())
		}
	}
}

func TestDeviceCloseRemovesSocketAndDescriptors(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		check(t, err)
		return len(entries)
	}
	before, address := count(), ""
	t.Run("world", func(t *testing.T) {
		d := newDuo(t)
		d.connect()
		s := [2]*segment{d.segment(0, 1), d.segment(1, 1)}
		for _, err := range d.both(func(rank int) error {
			_, err := d.groups[rank].Register(d.ctx, driver.SegmentKey{}, s[rank])
			return err
		}) {
			check(t, err)
		}
		address = d.devices[0].machine.Address()
	})
	if conn, err := net.Dial("unix", address); err == nil {
		t.Error("the socket still accepts connections")
		check(t, conn.Close())
	}
	if after := count(); after > before+1 {
		t.Errorf("%d descriptors are open after Close, want at most %d", after, before+1)
	}
}
