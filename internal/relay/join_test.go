package relay

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/rendezvous"
)

// joinAll joins ranks of a group of the given size, those that come, and closes what they get.
func joinAll(
	ctx context.Context, t *testing.T, size int, came []int, timeout time.Duration,
) []error {
	t.Helper()
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	ranks := make([]int, size)
	for r := range ranks {
		ranks[r] = 10 + r
	}
	errs := make([]error, len(came))
	var all sync.WaitGroup
	for at, r := range came {
		all.Go(func() {
			p, err := Join(ctx, Config{
				Store: store, Timeout: timeout,
				Group: driver.GroupConfig{ID: "a/b", Ranks: ranks, Rank: r},
			})
			if errs[at] = err; err == nil {
				errs[at] = p.Close()
			}
		})
	}
	all.Wait()
	return errs
}

func TestRanksThatDoNotJoinAreNamed(t *testing.T) {
	for at, err := range joinAll(context.Background(), t, 5, []int{0, 2, 4}, time.Second) {
		var late *driver.TimeoutError
		if !errors.As(err, &late) || !slices.Equal(late.Missing, []int{11, 13}) {
			t.Errorf("rank %d: got %v, want that ranks 11 and 13 are missing", 2*at, err)
		}
	}
}

func TestFirstRankThatDoesNotJoinIsNamed(t *testing.T) {
	err := joinAll(context.Background(), t, 2, []int{1}, 100*time.Millisecond)[0]
	var late *driver.TimeoutError
	if !errors.As(err, &late) || !slices.Equal(late.Missing, []int{10}) {
		t.Errorf("got %v, want that rank 10 is missing", err)
	}
}

func TestJoiningEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("enough")
	cancel(cause)
	for rank, err := range joinAll(ctx, t, 2, []int{0}, patience) {
		if !errors.Is(err, cause) {
			t.Errorf("rank %d: got %v, want the cause", rank, err)
		}
	}
}

func TestManyRanksJoin(t *testing.T) {
	came := make([]int, 24)
	for r := range came {
		came[r] = r
	}
	check(t, errors.Join(joinAll(context.Background(), t, len(came), came, patience)...))
}

func TestInvalidConfigurationIsAnError(t *testing.T) {
	for row, change := range map[string]func(*Config){
		"rank below":  func(c *Config) { c.Group.Rank = -1 },
		"rank above":  func(c *Config) { c.Group.Rank = 2 },
		"no rank":     func(c *Config) { c.Group = driver.GroupConfig{} },
		"no timeout":  func(c *Config) { c.Timeout = 0 },
		"no store":    func(c *Config) { c.Store = nil },
		"not our own": func(c *Config) { c.Host = "192.0.2.1" },
	} {
		t.Run(row, func(t *testing.T) {
			cfg := newImpostor(t).config()
			change(&cfg)
			if p, err := Join(t.Context(), cfg); err == nil || p != nil {
				t.Errorf("got %v, %v, want an error alone", p, err)
			}
		})
	}
}

func TestGroupOfOtherRanksIsAnErrorOnBothSides(t *testing.T) {
	i := newImpostor(t)
	other := i.config()
	other.Group = driver.GroupConfig{ID: "duo", Ranks: []int{4, 8}, Rank: 1}
	result := make(chan error, 1)
	go func() {
		_, err := Join(i.ctx, other)
		result <- err
	}()
	_, err := Join(i.ctx, i.config())
	for who, err := range map[string]error{"rank 7": err, "rank 4": <-result} {
		if err == nil || !strings.Contains(err.Error(), who+" means other ranks") {
			t.Errorf("got %v, want that %s means other ranks", err, who)
		}
	}
}

func TestStoreOfSomebodyElseIsAnError(t *testing.T) {
	i := newImpostor(t)
	cfg := i.config()
	cfg.Group = duo(1)
	check(t, i.store.Set(i.ctx, (&entry{cfg: cfg}).key("token"), []byte("short")))
	if _, err := Join(i.ctx, cfg); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("got %v, want an error about a token of 5 bytes", err)
	}
}

func TestWayToTheStore(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:29500": "127.0.0.1", "[::1]:29500": "::1", "unix:@store": "127.0.0.1",
	} {
		if got, err := Towards(t.Context(), address); err != nil || got != want {
			t.Errorf("towards %s: got %q, %v, want %q", address, got, err, want)
		}
	}
	if _, err := Towards(t.Context(), "nonsense"); err == nil {
		t.Error("there is a way to nonsense")
	}
}

// TestKernelWatchesTheOtherMachine reads back what the kernel was told.
func TestKernelWatchesTheOtherMachine(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	defer conn.Close()
	check(t, watchful(conn.(*net.TCPConn)))
	raw, err := conn.(*net.TCPConn).SyscallConn()
	check(t, err)
	check(t, raw.Control(func(fd uintptr) {
		for option, want := range map[[2]int]int{
			{syscall.IPPROTO_TCP, tcpUserTimeout}:        int(silence / time.Millisecond),
			{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE}:   1,
			{syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE}:  1,
			{syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL}: 1,
		} {
			got, err := syscall.GetsockoptInt(int(fd), option[0], option[1])
			if err != nil || got != want {
				t.Errorf("option %v: got %d, %v, want %d", option, got, err, want)
			}
		}
	}))
}
