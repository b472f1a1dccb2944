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

// rankPair holds two ranks in this process, which are connected by Unix sockets.
type rankPair struct {
	t       *testing.T
	ctx     context.Context
	store   *drivertest.Store // for rendezvous
	devices [2]*Device
	groups  [2]driver.Communicator // nil before connect
}

func newRankPair(t *testing.T) *rankPair {
	t.Helper()
	var noHook func() error
	return newRankPairWithWaitHook(t, noHook)
}

// newRankPairWithWaitHook returns a pair in which rank 0 calls waitHook repeatedly during waits.
func newRankPairWithWaitHook(t *testing.T, waitHook func() error) *rankPair {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), processTimeout)
	pair := &rankPair{t: t, ctx: ctx, store: &drivertest.Store{}}
	pair.devices[0] = pair.open(0, waitHook)
	pair.devices[1] = pair.open(1, nil)

	t.Cleanup(func() {
		defer cancel()
		for rank, device := range pair.devices {
			if pair.groups[rank] != nil {
				failIfErr(t, pair.groups[rank].Close())
			}

			failIfErr(t, device.Close())
		}
	})
	return pair
}

func (pair *rankPair) open(rank int, waitHook func() error) *Device {
	pair.t.Helper()
	device, err := Backend{}.Open(pair.ctx, driver.Config{
		Rank: rank, Size: 2, Store: pair.store, Timeout: processTimeout, Interrupted: waitHook,
	})
	failIfErr(pair.t, err)
	return device.(*Device)
}

// runOnBoth calls f concurrently for both ranks and returns the errors by rank.
func (pair *rankPair) runOnBoth(f func(rank int) error) [2]error {
	result1 := make(chan error)
	go func() { result1 <- f(1) }()
	err0 := f(0)
	err1 := <-result1
	return [2]error{err0, err1}
}

func (pair *rankPair) mustRunOnBoth(f func(rank int) error) {
	pair.t.Helper()
	for _, err := range pair.runOnBoth(f) {
		failIfErr(pair.t, err)
	}
}

func (pair *rankPair) connect() {
	pair.t.Helper()
	pair.mustRunOnBoth(func(rank int) (err error) {
		pair.groups[rank], err = pair.devices[rank].Connect(pair.ctx, pairGroup(rank))
		return err
	})
}

func pairGroup(rank int) driver.GroupConfig {
	return driver.GroupConfig{ID: "pair", Ranks: []int{0, 1}, Rank: rank, Check: true}
}

func (pair *rankPair) segment(rank int, granules int64) *segment {
	pair.t.Helper()
	bytes := granules * granularity
	arena, err := pair.devices[rank].NewArena(bytes)
	failIfErr(pair.t, err)
	const offset = 0
	s, err := arena.Map(offset, bytes)
	failIfErr(pair.t, err)
	pair.t.Cleanup(func() {
		failIfErr(pair.t, s.Unmap())
		failIfErr(pair.t, arena.Close())
	})
	return s.(*segment)
}

func (pair *rankPair) segments(granules int64) [2]*segment {
	pair.t.Helper()
	return [2]*segment{pair.segment(0, granules), pair.segment(1, granules)}
}

func (pair *rankPair) register(key driver.SegmentKey, segments [2]*segment) [2]error {
	return pair.runOnBoth(func(rank int) error {
		_, err := pair.groups[rank].Register(pair.ctx, key, segments[rank])
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
	pair := newRankPair(t)
	address := pair.devices[0].machine.Address()
	wrongToken := handoff.Token{1}
	wrongTokenClient, err := handoff.Dial(pair.ctx, address, wrongToken)
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
	const startOfRequest = "SM01"
	_, err = incompleteClient.Write([]byte(startOfRequest))
	failIfErr(t, err)

	pair.connect()
	key := driver.SegmentKey{Pool: 5, Ordinal: 6} // arbitrary
	for _, err := range pair.register(key, pair.segments(1)) {
		failIfErr(t, err)
	}

	validFileKey := fileKey(key)
	_, err = wrongTokenClient.Fetch(pair.ctx, validFileKey)
	if !errors.Is(err, handoff.ErrRefused) {
		t.Errorf("Fetch with a wrong token: got %v, want ErrRefused", err)
	}

	// The error is EOF, or ECONNRESET because the server has not read the whole request.
	if n, err := invalidClient.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("reply to an invalid request: got %d bytes, error %v; want an error", n, err)
	}
}

// Register rejects a file that is too small, because an access past its end would kill the process.
func TestSmallSegmentFileCausesErrorOnBothRanks(t *testing.T) {
	pair := newRankPair(t)
	pair.connect()
	segments := pair.segments(2)
	smallFile, err := sys.Memfd("small", granularity)
	failIfErr(t, err)
	replacedFile := segments[0].file
	defer replacedFile.Close()
	segments[0].file = smallFile
	want := fmt.Sprintf("%d bytes instead of %d", granularity, 2*granularity)
	errs := pair.register(driver.SegmentKey{Pool: 1}, segments)
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("rank %d: Register = %v, want an error with %q", rank, err, want)
		}

		windows := pair.groups[rank].(*communicator).windows
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
		pair := newRankPair(t) // closed at the end of the subtest
		pair.connect()
		for _, err := range pair.register(driver.SegmentKey{}, pair.segments(1)) {
			failIfErr(t, err)
		}

		address = pair.devices[0].machine.Address()
	})
	if conn, err := net.Dial("unix", address); err == nil {
		t.Error("the socket still accepts connections")
		failIfErr(t, conn.Close())
	}

	if countAfter := countDescriptors(); countAfter > countBefore {
		t.Errorf("%d descriptors are open after Close, want at most %d", countAfter, countBefore)
	}
}
