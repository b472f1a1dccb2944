package host

import (
	"context"
	"errors"
	"fmt"
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

// rankPair holds two ranks in this process. Each fetches the files of the other's segments from a
// Unix socket.
type rankPair struct {
	t       *testing.T
	ctx     context.Context
	store   *drivertest.Store // for rendezvous
	devices [2]*Device
	groups  [2]driver.Communicator // by rank; nil before connect
}

func newRankPair(t *testing.T) *rankPair {
	t.Helper()
	return newRankPairWithWaitHook(t, nil)
}

// While rank 0 waits for rank 1, it calls waitHook repeatedly.
func newRankPairWithWaitHook(t *testing.T, waitHook func() error) *rankPair {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), processTimeout)
	d := &rankPair{t: t, ctx: ctx, store: &drivertest.Store{}}
	d.devices[0] = d.open(0, waitHook)
	d.devices[1] = d.open(1, nil)

	t.Cleanup(func() {
		defer cancel()
		for rank, device := range d.devices {
			if d.groups[rank] != nil {
				failIfErr(t, d.groups[rank].Close())
			}

			failIfErr(t, device.Close())
		}
	})
	return d
}

func (d *rankPair) open(rank int, waitHook func() error) *Device {
	d.t.Helper()
	device, err := Backend{}.Open(d.ctx, driver.Config{
		Rank: rank, Size: 2, Store: d.store, Timeout: processTimeout, Interrupted: waitHook,
	})
	failIfErr(d.t, err)
	return device.(*Device)
}

// runOnBoth calls f concurrently for both ranks and returns the errors by rank.
func (d *rankPair) runOnBoth(f func(rank int) error) [2]error {
	result1 := make(chan error)
	go func() { result1 <- f(1) }()
	err0 := f(0)
	err1 := <-result1
	return [2]error{err0, err1}
}

func (d *rankPair) connect() {
	d.t.Helper()
	errs := d.runOnBoth(func(rank int) (err error) {
		d.groups[rank], err = d.devices[rank].Connect(d.ctx, pairGroup(rank))
		return err
	})
	for _, err := range errs {
		failIfErr(d.t, err)
	}
}

func pairGroup(rank int) driver.GroupConfig {
	return driver.GroupConfig{ID: "pair", Ranks: []int{0, 1}, Rank: rank, Check: true}
}

func (d *rankPair) segment(rank int, granules int64) *segment {
	d.t.Helper()
	bytes := granules * granularity
	arena, err := d.devices[rank].NewArena(bytes)
	failIfErr(d.t, err)
	s, err := arena.Map(0, bytes)
	failIfErr(d.t, err)
	d.t.Cleanup(func() {
		failIfErr(d.t, s.Unmap())
		failIfErr(d.t, arena.Close())
	})
	return s.(*segment)
}

func (d *rankPair) segments(granules int64) [2]*segment {
	d.t.Helper()
	return [2]*segment{d.segment(0, granules), d.segment(1, granules)}
}

func (d *rankPair) register(key driver.SegmentKey, segments [2]*segment) [2]error {
	return d.runOnBoth(func(rank int) error {
		_, err := d.groups[rank].Register(d.ctx, key, segments[rank])
		return err
	})
}

func failIfErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSocketRefusesUnknownClientsWithoutBlocking(t *testing.T) {
	d := newRankPair(t)
	address := d.devices[0].machine.Address()
	wrongTokenClient, err := handoff.Dial(d.ctx, address, handoff.Token{1})
	failIfErr(t, err)
	defer wrongTokenClient.Close()
	invalidClient, err := net.Dial("unix", address)
	failIfErr(t, err)
	defer invalidClient.Close()
	_, err = invalidClient.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 100)))
	failIfErr(t, err)
	incompleteClient, err := net.Dial("unix", address)
	failIfErr(t, err)
	defer incompleteClient.Close()
	const validPrefix = "SM01"
	_, err = incompleteClient.Write([]byte(validPrefix))
	failIfErr(t, err)

	d.connect()
	key := driver.SegmentKey{Pool: 5, Ordinal: 6}
	for _, err := range d.register(key, d.segments(1)) {
		failIfErr(t, err)
	}

	validFileKey := d.groups[0].(*communicator).fileKey(key)
	_, err = wrongTokenClient.Fetch(d.ctx, validFileKey)
	if !errors.Is(err, handoff.ErrRefused) {
		t.Errorf("Fetch with a wrong token: got %v, want ErrRefused", err)
	}

	// The error is EOF, or ECONNRESET because the server has not read the whole request.
	if n, err := invalidClient.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("reply to an invalid request: got %d bytes, error %v; want an error", n, err)
	}
}

// Rank 1 would get SIGBUS if it accessed the second half of the segment.
func TestSmallSegmentFileCausesErrorOnBothRanks(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	segments := d.segments(2)
	smallFile, err := sys.Memfd("small", granularity)
	failIfErr(t, err)
	rightFile := segments[0].file
	defer rightFile.Close()
	segments[0].file = smallFile
	want := fmt.Sprintf("%d bytes instead of %d", granularity, 2*granularity)
	errs := d.register(driver.SegmentKey{Pool: 1}, segments)
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("rank %d: Register = %v, want an error with %q", rank, err, want)
		}

		windows := d.groups[rank].(*communicator).windows
		if len(windows) != 0 {
			t.Errorf("rank %d has %d windows after the error, want 0", rank, len(windows))
		}
	}
}

func TestOpenRejectsInvalidConfiguration(t *testing.T) {
	validConfig := driver.Config{Rank: 0, Size: 1, Store: &drivertest.Store{}, Timeout: time.Second}
	for name, change := range map[string]func(*driver.Config){
		"negative rank": func(c *driver.Config) { c.Rank = -1 },
		"rank too high": func(c *driver.Config) { c.Rank = 1 },
		"no ranks":      func(c *driver.Config) { c.Size = 0 },
		"no store":      func(c *driver.Config) { c.Store = nil },
		"no timeout":    func(c *driver.Config) { c.Timeout = 0 },
	} {
		cfg := validConfig
		change(&cfg)
		if d, err := (Backend{}).Open(t.Context(), cfg); err == nil {
			t.Errorf("%s: Open succeeded, want an error", name)
			failIfErr(t, d.Close())
		}
	}
}

func TestDeviceCloseRemovesSocketAndDescriptors(t *testing.T) {
	countDescriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		failIfErr(t, err)
		return len(entries)
	}
	countBefore := countDescriptors()
	var address string
	t.Run("open and close", func(t *testing.T) {
		d := newRankPair(t) // closed at the end of the subtest
		d.connect()
		for _, err := range d.register(driver.SegmentKey{}, d.segments(1)) {
			failIfErr(t, err)
		}

		address = d.devices[0].machine.Address()
	})
	if conn, err := net.Dial("unix", address); err == nil {
		t.Error("the socket still accepts connections")
		failIfErr(t, conn.Close())
	}

	if countAfter := countDescriptors(); countAfter > countBefore {
		t.Errorf("%d descriptors are open after Close, want at most %d", countAfter, countBefore)
	}
}
