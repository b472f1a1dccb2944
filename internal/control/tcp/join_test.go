package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/ranktest"
	"symmem/internal/rendezvous"
)

// joinAll joins the given ranks of a group of the given size, and closes their planes.
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
	return ranktest.Outcomes(len(came), func(at int) error {
		p, err := Join(ctx, Config{
			Store: store, Timeout: timeout,
			Group: driver.GroupConfig{ID: "a/b", Ranks: ranks, Rank: came[at]},
		})
		if err != nil {
			return err
		}
		return p.Close()
	})
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

// TestRankThatCannotJoinInformsTheOthers checks that the others fail with its reason instead of
// waiting.
func TestRankThatCannotJoinInformsTheOthers(t *testing.T) {
	for failing := range 3 {
		t.Run(fmt.Sprintf("rank %d", failing), func(t *testing.T) {
			store := rendezvous.NewLocal()
			defer func() { check(t, store.Close()) }()
			var all sync.WaitGroup
			for r := range 3 {
				cfg := Config{
					Store: store, Timeout: patience,
					Group: driver.GroupConfig{ID: "trio", Ranks: []int{10, 11, 12}, Rank: r},
				}
				if r == failing {
					cfg.Host = "192.0.2.1"
				}
				all.Go(func() {
					_, err := Join(t.Context(), cfg)
					want := fmt.Sprintf("rank %d failed: listen tcp 192.0.2.1:0", 10+failing)
					if r == failing {
						want = "joining group trio: listen tcp 192.0.2.1:0"
					}
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("rank %d: got %v, want %q", 10+r, err, want)
					}
				})
			}
			all.Wait()
		})
	}
}

// TestRankLostWhileJoiningIsExplained checks that the reason replaces the loss if it is stored
// shortly after.
func TestRankLostWhileJoiningIsExplained(t *testing.T) {
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	group := driver.GroupConfig{ID: "duo", Ranks: []int{0, 1}}
	e := &joining{cfg: Config{Store: store, Group: group}}
	other := errors.New("something else")
	if err := e.peerFailureOr(t.Context(), other); !errors.Is(err, other) {
		t.Errorf("got %v, want %v", err, other)
	}
	lost := &driver.RankLostError{Ranks: []int{1}}
	if err := e.peerFailureOr(t.Context(), lost); !errors.Is(err, lost) {
		t.Errorf("got %v without a stored reason, want %v", err, lost)
	}
	group.Rank = 1
	failed := &joining{cfg: Config{Store: store, Group: group}}
	go failed.publishFailure(t.Context(), errors.New("no port"))
	if err := e.peerFailureOr(t.Context(), lost); err.Error() != "rank 1 failed: no port" {
		t.Errorf("got %v, want the reason of rank 1", err)
	}
}

// TestOnlyMissingRanksAreNamed has ranks wait for rank 0, which must be the only one named.
func TestOnlyMissingRanksAreNamed(t *testing.T) {
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	var all sync.WaitGroup
	for r := 1; r < 4; r++ {
		all.Go(func() {
			_, err := Join(t.Context(), Config{
				Store: store, Timeout: 2 * time.Second, // enough for the others on a busy machine
				Group: driver.GroupConfig{ID: "quartet", Ranks: []int{10, 11, 12, 13}, Rank: r},
			})
			var absent *driver.AbsentError
			if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, []int{10}) {
				t.Errorf("rank %d: got %v, want that rank 10 is absent", 10+r, err)
			}
		})
	}
	all.Wait()
}

// prompt is a store whose Get returns as soon as its context has ended. Contexts derived from that
// one may not have ended yet then.
type prompt struct{ *rendezvous.Client }

func (s prompt) Get(ctx context.Context, key string) ([]byte, error) {
	if value, there, err := s.Peek(ctx, key); there {
		return value, err
	}
	for range 100 {
		context.AfterFunc(ctx, func() {})
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestMissingRanksAreNamedWhenTheStoreReturnsFirst uses a store that returns at the deadline.
func TestMissingRanksAreNamedWhenTheStoreReturnsFirst(t *testing.T) {
	local := rendezvous.NewLocal()
	defer func() { check(t, local.Close()) }()
	var all sync.WaitGroup
	for n := range 10 {
		store := prompt{rendezvous.WithPrefix(local, strconv.Itoa(n))}
		group := driver.GroupConfig{ID: "sextet", Ranks: []int{0, 1, 2, 3, 4, 5}}
		e := &joining{cfg: Config{Store: store, Group: group}}
		check(t, e.shareToken(t.Context()))
		group.Rank = 5
		all.Go(func() {
			_, err := Join(t.Context(), Config{Store: store, Group: group, Timeout: 3 * time.Second})
			var absent *driver.AbsentError
			if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, []int{0, 1, 2, 3, 4}) {
				t.Errorf("got %v, want the absent ranks", err)
			}
		})
	}
	all.Wait()
}

// TestLostRankIsNamedByAll has one rank find the address of rank 1 unused. The other rank, which
// does not connect to rank 1, must name it, too.
func TestLostRankIsNamedByAll(t *testing.T) {
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	e := &joining{cfg: Config{Store: store, Group: driver.GroupConfig{ID: "trio"}}}
	check(t, store.Set(t.Context(), e.addressKey(1), []byte(gone.Addr().String())))
	check(t, gone.Close())
	var all sync.WaitGroup
	for _, r := range []int{0, 2} {
		all.Go(func() {
			_, err := Join(t.Context(), Config{
				Store: store, Timeout: patience,
				Group: driver.GroupConfig{ID: "trio", Ranks: []int{10, 11, 12}, Rank: r},
			})
			var lost *driver.RankLostError
			if !errors.As(err, &lost) || !slices.Equal(lost.Ranks, []int{11}) {
				t.Errorf("rank %d: got %v, want that rank 11 is lost", 10+r, err)
			}
		})
	}
	all.Wait()
}

func TestJoinEndsWithItsContext(t *testing.T) {
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
		"rank below":        func(c *Config) { c.Group.Rank = -1 },
		"rank above":        func(c *Config) { c.Group.Rank = 2 },
		"no rank":           func(c *Config) { c.Group = driver.GroupConfig{} },
		"no timeout":        func(c *Config) { c.Timeout = 0 },
		"no store":          func(c *Config) { c.Store = nil },
		"a foreign address": func(c *Config) { c.Host = "192.0.2.1" },
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
		if err == nil || !strings.Contains(err.Error(), who+" has different ranks") {
			t.Errorf("got %v, want that %s has different ranks", err, who)
		}
	}
}

func TestForeignStoreIsAnError(t *testing.T) {
	i := newImpostor(t)
	cfg := i.config()
	cfg.Group = duo(1)
	check(t, i.store.Set(i.ctx, (&joining{cfg: cfg}).key("token"), []byte("short")))
	if _, err := Join(i.ctx, cfg); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("got %v, want an error about a token of 5 bytes", err)
	}
}

func TestAddresses(t *testing.T) {
	listen := func(host string) []string {
		i := newImpostor(t)
		e := &joining{cfg: i.config()}
		e.cfg.Host = host
		check(t, e.listen(i.ctx))
		check(t, e.listener.Close())
		value, err := i.store.Get(i.ctx, e.addressKey(0))
		check(t, err)
		return strings.Fields(string(value))
	}
	chosen := listen("127.0.0.1")
	if len(chosen) != 1 || !strings.HasPrefix(chosen[0], "127.0.0.1:") {
		t.Errorf("got %q, want 127.0.0.1 alone", chosen)
	}
	loopback := false
	for _, address := range listen("") {
		host, _, err := net.SplitHostPort(address)
		check(t, err)
		if now := net.ParseIP(host).IsLoopback(); loopback && !now {
			t.Errorf("%s comes after the loopback", address)
		} else {
			loopback = now
		}
	}
	if !loopback {
		t.Error("the loopback is left out")
	}
}

// TestRankIsFoundAtAnyOfItsAddresses puts unused addresses and an address of another rank before
// the right one.
func TestRankIsFoundAtAnyOfItsAddresses(t *testing.T) {
	i := newImpostor(t)
	other, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	unused, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	check(t, unused.Close())
	go func() {
		if conn, err := other.Accept(); err == nil {
			_ = conn.Close()
		}
	}()
	joined := make(chan error, 1)
	go func() {
		p, err := Join(i.ctx, i.config())
		if err == nil {
			err = p.Close()
		}
		joined <- err
	}()
	key := i.entry().addressKey(0)
	right, err := i.store.Get(i.ctx, key)
	check(t, err)
	check(t, i.store.Set(i.ctx, key, fmt.Appendf(nil, "nowhere %s %s %s",
		unused.Addr(), other.Addr(), right)))
	p, err := Join(i.ctx, Config{Store: i.store, Group: duo(1), Timeout: patience})
	check(t, err)
	check(t, p.Close())
	check(t, <-joined)
	check(t, other.Close())
}

// TestKeepAliveOptionsAreSet reads the socket options back from the kernel.
func TestKeepAliveOptionsAreSet(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	defer conn.Close()
	check(t, setKeepAlive(conn.(*net.TCPConn)))
	raw, err := conn.(*net.TCPConn).SyscallConn()
	check(t, err)
	check(t, raw.Control(func(fd uintptr) {
		for option, want := range map[[2]int]int{
			{syscall.IPPROTO_TCP, tcpUserTimeout}:        int(keepAliveTimeout / time.Millisecond),
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
