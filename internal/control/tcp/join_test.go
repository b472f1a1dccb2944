package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/ranktest"
	"symmem/internal/rendezvous"
)

// joinAll makes the present ranks join a group of the given size, closes their planes and returns
// their errors.
func joinAll(
	ctx context.Context, t *testing.T, size int, present []int, timeout time.Duration,
) []error {
	t.Helper()
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	ranks := make([]int, size)
	for r := range ranks {
		ranks[r] = 10 + r
	}

	return ranktest.CollectErrors(len(present), func(i int) error {
		p, err := Join(ctx, Config{
			Store: store, Timeout: timeout,
			Group: driver.GroupConfig{ID: "a/b", Ranks: ranks, Rank: present[i]},
		})
		if err != nil {
			return err
		}

		return p.Close()
	})
}

func TestJoinReportsMissingRanks(t *testing.T) {
	for i, err := range joinAll(context.Background(), t, 5, []int{0, 2, 4}, time.Second) {
		var late *driver.TimeoutError
		if !errors.As(err, &late) || !slices.Equal(late.Missing, []int{11, 13}) {
			t.Errorf("rank %d: got %v, want a TimeoutError about ranks 11 and 13", 2*i, err)
		}
	}
}

func TestJoinReportsMissingFirstRank(t *testing.T) {
	err := joinAll(context.Background(), t, 2, []int{1}, 100*time.Millisecond)[0]
	var late *driver.TimeoutError
	if !errors.As(err, &late) || !slices.Equal(late.Missing, []int{10}) {
		t.Errorf("got %v, want a TimeoutError about rank 10", err)
	}
}

func TestJoinErrorReachesOtherRanks(t *testing.T) {
	for failing := range 3 {
		t.Run(fmt.Sprintf("rank %d", failing), func(t *testing.T) {
			store := rendezvous.NewLocal()
			defer func() { check(t, store.Close()) }()
			var all sync.WaitGroup
			for r := range 3 {
				cfg := Config{
					Store: store, Timeout: hangTimeout,
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
						t.Errorf("rank %d: got %v, want an error that contains %q", 10+r, err, want)
					}
				})
			}

			all.Wait()
		})
	}
}

// In TestStoredReasonReplacesLostRank, rank 1 stores the reason for its failure shortly after
// rank 0 has found that rank 1 is lost.
func TestStoredReasonReplacesLostRank(t *testing.T) {
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	group := driver.GroupConfig{ID: "duo", Ranks: []int{0, 1}}
	j := &joiner{cfg: Config{Store: store, Group: group}}
	other := errors.New("something else")
	if err := j.peerFailureOr(t.Context(), other); !errors.Is(err, other) {
		t.Errorf("got %v, want %v", err, other)
	}

	lost := &driver.RankLostError{Ranks: []int{1}}
	if err := j.peerFailureOr(t.Context(), lost); !errors.Is(err, lost) {
		t.Errorf("got %v without a stored reason, want %v", err, lost)
	}

	group.Rank = 1
	failed := &joiner{cfg: Config{Store: store, Group: group}}
	go failed.publishFailure(t.Context(), errors.New("no port"))
	if err := j.peerFailureOr(t.Context(), lost); err.Error() != "rank 1 failed: no port" {
		t.Errorf("got %v, want the reason stored by rank 1", err)
	}
}

func TestJoinReportsOnlyMissingRanks(t *testing.T) {
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	var all sync.WaitGroup
	for r := 1; r < 4; r++ {
		all.Go(func() {
			_, err := Join(t.Context(), Config{
				Store: store, Timeout: 2 * time.Second, // the other ranks join in time even under load
				Group: driver.GroupConfig{ID: "quartet", Ranks: []int{10, 11, 12, 13}, Rank: r},
			})
			var absent *driver.AbsentError
			if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, []int{10}) {
				t.Errorf("rank %d: got %v, want an AbsentError about rank 10", 10+r, err)
			}
		})
	}

	all.Wait()
}

// promptStore is a store whose Get returns immediately when its context is canceled. Other
// contexts with the same parent may not be canceled yet at that time.
type promptStore struct{ *rendezvous.Client }

func (s promptStore) Get(ctx context.Context, key string) ([]byte, error) {
	if value, set, err := s.Peek(ctx, key); set {
		return value, err
	}

	for range 100 {
		context.AfterFunc(ctx, func() {})
	}

	<-ctx.Done()
	return nil, ctx.Err()
}

// TestJoinReportsMissingRanksIfStoreReturnsFirst uses a store whose calls return before other
// goroutines notice that the deadline has passed.
func TestJoinReportsMissingRanksIfStoreReturnsFirst(t *testing.T) {
	local := rendezvous.NewLocal()
	defer func() { check(t, local.Close()) }()
	var all sync.WaitGroup
	for n := range 10 {
		store := promptStore{rendezvous.WithPrefix(local, strconv.Itoa(n))}
		group := driver.GroupConfig{ID: "sextet", Ranks: []int{0, 1, 2, 3, 4, 5}}
		j := &joiner{cfg: Config{Store: store, Group: group}}
		check(t, j.shareToken(t.Context()))
		group.Rank = 5
		all.Go(func() {
			_, err := Join(t.Context(), Config{Store: store, Group: group, Timeout: 3 * time.Second})
			var absent *driver.AbsentError
			if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, []int{0, 1, 2, 3, 4}) {
				t.Errorf("got %v, want an AbsentError about ranks 0 to 4", err)
			}
		})
	}

	all.Wait()
}

// refusingAddress refuses connections: no program listens on port 1 (tcpmux), and the system gives
// it to no socket.
const refusingAddress = "127.0.0.1:1"

// TestAllRanksReportLostRank stores an address for group rank 1 at which no process listens.
// Only group rank 2 connects to that address, but group rank 0 must report rank 1 as lost as
// well.
func TestAllRanksReportLostRank(t *testing.T) {
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	j := &joiner{cfg: Config{Store: store, Group: driver.GroupConfig{ID: "trio"}}}
	check(t, store.Set(t.Context(), j.addressKey(1), []byte(refusingAddress)))
	var all sync.WaitGroup
	for _, r := range []int{0, 2} {
		all.Go(func() {
			_, err := Join(t.Context(), Config{
				Store: store, Timeout: hangTimeout,
				Group: driver.GroupConfig{ID: "trio", Ranks: []int{10, 11, 12}, Rank: r},
			})
			var lost *driver.RankLostError
			if !errors.As(err, &lost) || !slices.Equal(lost.Ranks, []int{11}) {
				t.Errorf("rank %d: got %v, want a RankLostError about rank 11", 10+r, err)
			}
		})
	}

	all.Wait()
}

// TestJoinReportsRankWithoutAddress stores no address for group rank 1. A rank does so if its
// machine has only link-local addresses, so the error must not call the rank lost.
func TestJoinReportsRankWithoutAddress(t *testing.T) {
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	j := &joiner{cfg: Config{Store: store, Group: driver.GroupConfig{ID: "trio"}}}
	check(t, store.Set(t.Context(), j.addressKey(1), nil))
	var all sync.WaitGroup
	for _, r := range []int{0, 2} {
		all.Go(func() {
			_, err := Join(t.Context(), Config{
				Store: store, Timeout: hangTimeout,
				Group: driver.GroupConfig{ID: "trio", Ranks: []int{10, 11, 12}, Rank: r},
			})
			isLost := errors.As(err, new(*driver.RankLostError))
			if err == nil || isLost || !strings.Contains(err.Error(), errNoAddress.Error()) {
				t.Errorf("rank %d: got %v, want %v", 10+r, err, errNoAddress)
			}
		})
	}

	all.Wait()
}

func TestJoinEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("canceled by the test")
	cancel(cause)
	for rank, err := range joinAll(ctx, t, 2, []int{0}, hangTimeout) {
		if !errors.Is(err, cause) {
			t.Errorf("rank %d: got %v, want %v", rank, err, cause)
		}
	}
}

func TestManyRanksJoin(t *testing.T) {
	present := make([]int, 24)
	for r := range present {
		present[r] = r
	}

	check(t, errors.Join(joinAll(context.Background(), t, len(present), present, hangTimeout)...))
}

func TestJoinRejectsInvalidConfig(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"rank too small":    func(c *Config) { c.Group.Rank = -1 },
		"rank too large":    func(c *Config) { c.Group.Rank = 2 },
		"no rank":           func(c *Config) { c.Group = driver.GroupConfig{} },
		"no timeout":        func(c *Config) { c.Timeout = 0 },
		"no store":          func(c *Config) { c.Store = nil },
		"a foreign address": func(c *Config) { c.Host = "192.0.2.1" },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := newImpostor(t).config()
			change(&cfg)
			if p, err := Join(t.Context(), cfg); err == nil || p != nil {
				t.Errorf("Join = %v, %v; want no plane and an error", p, err)
			}
		})
	}
}

func TestJoinFailsOnBothRanksIfGroupsDiffer(t *testing.T) {
	i := newImpostor(t)
	other := i.config()
	other.Group = driver.GroupConfig{ID: "duo", Ranks: []int{4, 8}, Rank: 1}
	result := make(chan error, 1)
	go func() {
		_, err := Join(i.ctx, other)
		result <- err
	}()
	_, err := Join(i.ctx, i.config())
	for peer, err := range map[string]error{"rank 7": err, "rank 4": <-result} {
		if err == nil || !strings.Contains(err.Error(), peer+" has different ranks") {
			t.Errorf("got %v, want an error that %s has different ranks", err, peer)
		}
	}
}

func TestJoinFailsWithForeignStore(t *testing.T) {
	i := newImpostor(t)
	cfg := i.config()
	cfg.Group = duo(1)
	check(t, i.store.Set(i.ctx, cfg.key("token"), []byte("short")))
	if _, err := Join(i.ctx, cfg); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("got %v, want an error about a token of 5 bytes", err)
	}
}

func TestAddresses(t *testing.T) {
	listen := func(host string) []string {
		i := newImpostor(t)
		j := &joiner{cfg: i.config()}
		j.cfg.Host = host
		check(t, j.listen(i.ctx))
		check(t, j.listener.Close())
		value, err := i.store.Get(i.ctx, j.addressKey(0))
		check(t, err)
		return strings.Fields(string(value))
	}
	addresses := listen("127.0.0.1")
	if len(addresses) != 1 || !strings.HasPrefix(addresses[0], "127.0.0.1:") {
		t.Errorf("got addresses %q, want only 127.0.0.1", addresses)
	}

	loopback := false
	for _, address := range listen("") {
		host, _, err := net.SplitHostPort(address)
		check(t, err)
		if now := net.ParseIP(host).IsLoopback(); loopback && !now {
			t.Errorf("%s is listed after the loopback address", address)
		} else {
			loopback = now
		}
	}

	if !loopback {
		t.Error("the loopback address is missing")
	}
}

// TestRankIsFoundAtAnyOfItsAddresses stores three wrong addresses before the right one: an
// invalid one, one at which no process listens, and one of a listener that is not the rank's.
func TestRankIsFoundAtAnyOfItsAddresses(t *testing.T) {
	i := newImpostor(t)
	other, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
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
	key := i.joiner().addressKey(0)
	right, err := i.store.Get(i.ctx, key)
	check(t, err)
	check(t, i.store.Set(i.ctx, key, fmt.Appendf(nil, "nowhere %s %s %s",
		refusingAddress, other.Addr(), right)))
	p, err := Join(i.ctx, Config{Store: i.store, Group: duo(1), Timeout: hangTimeout})
	check(t, err)
	check(t, p.Close())
	check(t, <-joined)
	check(t, other.Close())
}

// TestHandshakeLeavesNoDeadline cancels the context of a handshake just when the other end has
// completed it. The handshake must fail, or return a connection on which later writes succeed.
func TestHandshakeLeavesNoDeadline(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer listener.Close()
	server := &joiner{cfg: Config{Group: duo(0)}}
	client := &joiner{cfg: Config{Group: duo(1)}}
	for round := range 1000 {
		dialed, err := net.Dial("tcp", listener.Addr().String())
		check(t, err)
		accepted, err := listener.Accept()
		check(t, err)
		server.unauthenticated = []net.Conn{accepted}
		accept := func(ctx context.Context) *link {
			l, _ := server.acceptPeer(ctx, accepted.(*net.TCPConn))
			return l
		}
		dial := func(ctx context.Context) *link {
			d := &dialer{joiner: client}
			l, _ := d.handshake(ctx, dialed.(*net.TCPConn))
			return l
		}
		first, second := accept, dial
		if round%2 == 1 {
			first, second = dial, accept
		}

		ctx, cancel := context.WithCancel(t.Context())
		canceled := make(chan *link)
		go func() { canceled <- second(ctx) }()
		first(t.Context())
		cancel()
		if l := <-canceled; l != nil {
			for range 100 { // lets functions run that the context starts
				runtime.Gosched()
			}

			if _, err := l.conn.Write([]byte{1}); err != nil {
				t.Fatalf("round %d: writing after the handshake: %v", round, err)
			}
		}

		_ = dialed.Close() // closed if the handshake failed
		_ = accepted.Close()
	}
}
