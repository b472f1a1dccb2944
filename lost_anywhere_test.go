package symmem_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"symmem"
	"symmem/internal/launch"
	"symmem/internal/rendezvous"
)

// Variables of TestARankThatIsKilledAnywhereIsNamed. The first is how many ranks it kills, the
// second the seed of what it draws; 500 kills take some ten minutes:
//
//	SYMMEM_TEST_KILLS=500 go test -run KilledAnywhere -timeout 1h .
const (
	killsVariable = "SYMMEM_TEST_KILLS"
	seedVariable  = "SYMMEM_TEST_SEED"
)

// stopVariable is how long TestARankThatIsStoppedIsNotTakenForDead stops a rank in each place,
// such as 20s.
const stopVariable = "SYMMEM_TEST_STOP"

// fewKills is how many ranks are killed unless the variable says otherwise.
const fewKills = 24

// anywhereVariable holds where the ranks of a process are; it makes this program one.
const anywhereVariable = "SYMMEM_TEST_ANYWHERE"

const (
	// namedWithin is how long after the death of a rank the others may take to name it.
	namedWithin = 3 * time.Second
	// killTimeout is the timeout of the ranks: who waits for it is not prompt.
	killTimeout = time.Minute
)

// locations are what ranks do while one of them is killed.
var locations = map[string]func(ctx context.Context, rt *symmem.Runtime) error{
	"open":  beInBarriers,
	"join":  beInJoins,
	"split": beInSplits,
	"close": beInBarriers,
}

// sighting is a line that a rank writes: that it has come to a stage, or how it has ended.
type sighting struct {
	PID, Rank int
	Stage     string
	At        time.Time
	Lost      []int
	Text      string
}

func (s sighting) write() {
	s.PID, s.At = os.Getpid(), time.Now()
	line, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

// beAnywhere is the main function of a rank: it is in one kind of call until it fails, and leaves.
func beAnywhere() int {
	ctx := context.Background()
	place := os.Getenv(anywhereVariable)
	number, err := strconv.Atoi(cmp.Or(os.Getenv(rankVariable), os.Getenv("RANK")))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	sighting{Rank: number, Stage: "started"}.write()
	o := symmem.Options{Timeout: killTimeout}
	if store := os.Getenv(storeVariable); store != "" {
		o.Store, o.Rank = store, number
		if o.Size, err = strconv.Atoi(os.Getenv(sizeVariable)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	rt, err := symmem.Open(ctx, on(o))
	if err != nil {
		tellLost(number, err)
		return 0
	}
	sighting{Rank: number, Stage: "open"}.write()
	if place != "close" {
		tellLost(number, locations[place](ctx, rt))
	}
	err = rt.Close()
	closed := sighting{Rank: number, Stage: "closed"}
	if err != nil {
		closed.Text = err.Error()
	}
	closed.write()
	return 0
}

func tellLost(number int, err error) {
	s := sighting{Rank: number, Stage: "failed", Text: fmt.Sprint(err)}
	var lost *symmem.RankLostError
	if errors.As(err, &lost) {
		s.Lost = lost.Ranks
	}
	s.write()
}

func beInBarriers(ctx context.Context, rt *symmem.Runtime) error {
	for {
		if err := rt.World().Barrier(ctx, nil); err != nil {
			return err
		}
		if err := rt.DefaultStream().Synchronize(ctx); err != nil {
			return err
		}
	}
}

func beInJoins(ctx context.Context, rt *symmem.Runtime) error {
	for n := 0; ; n++ {
		g, err := rt.Join(ctx, fmt.Sprintf("group %d", n), rt.World().Ranks())
		if err != nil {
			return err
		}
		if err := g.Close(); err != nil {
			return err
		}
	}
}

func beInSplits(ctx context.Context, rt *symmem.Runtime) error {
	for {
		g, err := rt.World().Split(ctx, 0, 0)
		if err != nil {
			return err
		}
		if err := g.Close(); err != nil {
			return err
		}
	}
}

// longestIn bounds the time from which a death is drawn: Open and Close take milliseconds.
var longestIn = map[string]time.Duration{
	"open": 6 * time.Millisecond, "join": 60 * time.Millisecond, "split": 60 * time.Millisecond,
	"close": 3 * time.Millisecond,
}

// kill is one death: where, of whom, under which kind of start, and when.
type kill struct {
	place    string
	launched bool
	// apart gives each rank a machine of its own, as far as a GPU backend knows.
	apart         bool
	ranks, victim int
	also          []int // who is killed, too
	// after is the time from the stage that the place begins with.
	after time.Duration
}

func drawKill(from *rand.Rand, most int) kill {
	k := kill{
		place: []string{"open", "join", "split", "close"}[from.IntN(4)], launched: from.IntN(2) == 0,
		ranks: 2 + from.IntN(most-1),
	}
	k.victim = from.IntN(k.ranks)
	k.after = time.Duration(from.Int64N(int64(longestIn[k.place])))
	k.apart = from.IntN(2) == 0 && !k.launched && on(symmem.Options{}).Backend != "host"
	return k
}

func (k kill) String() string {
	by := "alone"
	if k.launched {
		by = "launched"
	}
	if k.apart {
		by = "apart"
	}
	return fmt.Sprintf("%s: rank %d of %d, %s, after %v", k.place, k.victim, k.ranks, by, k.after)
}

// TestARankThatIsKilledAnywhereIsNamed by all others, in seconds, and leaves nothing behind.
func TestARankThatIsKilledAnywhereIsNamed(t *testing.T) {
	kills, seed := fewKills, rand.Uint64()
	for variable, parse := range map[string]func(string) error{
		killsVariable: func(v string) (err error) { kills, err = strconv.Atoi(v); return err },
		seedVariable: func(v string) (err error) {
			seed, err = strconv.ParseUint(v, 10, 64)
			return err
		},
	} {
		if v := os.Getenv(variable); v != "" {
			if err := parse(v); err != nil {
				t.Fatal(err)
			}
		}
	}
	if testing.Short() {
		kills = min(kills, 8)
	}
	t.Logf("%s=%d", seedVariable, seed)
	from := rand.New(rand.NewPCG(seed, 0))
	most := min(4, localRanks(t))
	worst := map[string]time.Duration{}
	for n := range kills {
		k := drawKill(from, most)
		t.Run(fmt.Sprintf("%d %v", n, k), func(t *testing.T) {
			took := k.run(t)
			worst[k.place] = max(worst[k.place], took)
		})
	}
	t.Logf("the longest times until the last survivor had named the rank, or closed: %v", worst)
	if left := sharedFiles(t); left != "" {
		t.Errorf("left in shared memory: %s", left)
	}
}

// TestARankThatIsStoppedIsNotTakenForDead in Open, Join and Split, although it does nothing for
// longer than the others take to notice a death. It is killed at last, which they do notice.
func TestARankThatIsStoppedIsNotTakenForDead(t *testing.T) {
	t.Parallel()
	stopped, err := time.ParseDuration(cmp.Or(os.Getenv(stopVariable), "2s"))
	if err != nil {
		t.Fatal(err)
	}
	for n, place := range []string{"open", "join", "split"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			k := kill{
				place: place, ranks: min(3, localRanks(t)), victim: n % 2, launched: n%2 == 0,
				after: time.Millisecond,
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*killTimeout)
			defer cancel()
			p, wait := k.begin(ctx, t)
			victim := p.pid(ctx, k.victim)
			for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT, syscall.SIGKILL} {
				if err := syscall.Kill(victim, s); err != nil {
					t.Fatal(err)
				}
				if s != syscall.SIGSTOP {
					continue
				}
				if s, failed := p.failedWithin(ctx, stopped); failed {
					t.Errorf("rank %d has failed while another was stopped: %s", s.Rank, s.Text)
				}
			}
			p.judge(ctx, time.Now())
			wait()
			p.wantNothingLeft()
		})
	}
}

// party is the ranks of one kill, as the test sees them.
type party struct {
	kill
	t      *testing.T
	store  string
	folder string // of temporary files

	mu      sync.Mutex
	seen    []sighting    // guarded by mu
	changed chan struct{} // closed and replaced with each; guarded by mu
}

// begin starts the ranks and returns once they are at the place.
func (k kill) begin(ctx context.Context, t *testing.T) (p *party, wait func()) {
	t.Helper()
	p = &party{kill: k, t: t, folder: t.TempDir(), changed: make(chan struct{})}
	p.store = "unix:@symmem-test-" + filepath.Base(filepath.Dir(p.folder)) + strconv.Itoa(os.Getpid())
	start := p.startAlone
	if k.launched {
		start = p.startLaunched
	}
	wait = start(ctx)
	p.awaitPlace(ctx)
	p.failedWithin(ctx, k.after) // what is drawn is the moment of the death
	return p, wait
}

// run starts the ranks, kills one and looks at the others. It returns how long the last one took.
func (k kill) run(t *testing.T) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*killTimeout)
	defer cancel()
	p, wait := k.begin(ctx, t)
	died := time.Now()
	if err := syscall.Kill(p.pid(ctx, k.victim), syscall.SIGKILL); err != nil &&
		!(errors.Is(err, syscall.ESRCH) && k.place == "close") {
		t.Fatal(err)
	}
	took := p.judge(ctx, died)
	wait()
	p.wantNothingLeft()
	return took
}

// environment is that of a rank but for its number.
func (p *party) environment() []string {
	return append(os.Environ(), anywhereVariable+"="+p.place, "TMPDIR="+p.folder)
}

// startAlone starts the ranks without a launcher: rank 0 serves the store.
func (p *party) startAlone(ctx context.Context) (wait func()) {
	var all []*exec.Cmd
	for number := range p.ranks {
		c := exec.CommandContext(ctx, os.Args[0])
		c.Env = append(p.environment(), storeVariable+"="+p.store,
			rankVariable+"="+strconv.Itoa(number), sizeVariable+"="+strconv.Itoa(p.ranks))
		if p.apart {
			c.Env = append(c.Env, fmt.Sprintf("NCCL_HOSTID=machine-%d", number))
		}
		c.Stderr = os.Stderr
		c.Stdout = p
		if err := c.Start(); err != nil {
			p.t.Fatal(err)
		}
		all = append(all, c)
	}
	return func() {
		for number, c := range all {
			if err := c.Wait(); err != nil && number != p.victim && !slices.Contains(p.also, number) {
				p.t.Errorf("rank %d: %v", number, err)
			}
		}
	}
}

// startLaunched starts the ranks by the launcher.
func (p *party) startLaunched(ctx context.Context) (wait func()) {
	done := make(chan error, 1)
	go func() {
		_, err := launch.Run(ctx, launch.Spec{
			Ranks: p.ranks, Command: os.Args[:1], Env: p.environment(), Plain: true,
			Stdout: p, Stderr: os.Stderr,
		})
		done <- err
	}()
	return func() {
		if err := <-done; err != nil {
			p.t.Error(err)
		}
	}
}

// Write takes in lines of ranks, whole ones.
func (p *party) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for line := range bytes.Lines(b) {
		var s sighting
		if err := json.Unmarshal(line, &s); err != nil {
			p.t.Errorf("a rank says %q", line)
			continue
		}
		p.seen = append(p.seen, s)
	}
	close(p.changed)
	p.changed = make(chan struct{})
	return len(b), nil
}

// await returns the sighting of a rank at one of some stages, or none when the context has ended.
func (p *party) await(ctx context.Context, number int, stages ...string) (sighting, bool) {
	return p.awaitAny(ctx, func(s sighting) bool {
		return s.Rank == number && slices.Contains(stages, s.Stage)
	})
}

// awaitAny returns the first sighting that is wanted, or none when the context has ended.
func (p *party) awaitAny(
	ctx context.Context, wanted func(sighting) bool,
) (sighting, bool) {
	for {
		p.mu.Lock()
		i, changed := slices.IndexFunc(p.seen, wanted), p.changed
		if i >= 0 {
			defer p.mu.Unlock()
			return p.seen[i], true
		}
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return sighting{}, false
		}
	}
}

func (p *party) pid(ctx context.Context, number int) int {
	s, ok := p.await(ctx, number, "started")
	if !ok {
		p.t.Fatalf("rank %d has not started", number)
	}
	return s.PID
}

// awaitPlace waits until the ranks are at the place. In Open without a launcher the victim must
// have greeted: nobody knows of it before.
func (p *party) awaitPlace(ctx context.Context) {
	p.t.Helper()
	switch {
	case p.place == "open" && p.launched:
		p.pid(ctx, p.victim)
	case p.place == "open":
		store, err := rendezvous.Dial(ctx, rendezvous.Endpoint{Address: p.store})
		if err != nil {
			p.t.Fatal(err)
		}
		defer store.Close()
		// Who comes after the end of rank 0 finds no store, and no word of it.
		for number := range p.ranks {
			joined := fmt.Sprintf("symmem/none/0/%d/1/joined/%d", p.ranks, number)
			if number != p.victim && p.victim != 0 {
				continue
			}
			if err := store.Wait(ctx, joined); err != nil {
				p.t.Fatal(err)
			}
		}
	default:
		for number := range p.ranks {
			if _, ok := p.await(ctx, number, "open", "failed"); !ok {
				p.t.Fatalf("rank %d has not opened", number)
			}
		}
	}
}

// judge wants every survivor to name the victim in time. In Close, where a rank need not notice,
// it wants it to have closed. It returns how long the last one took.
func (p *party) judge(ctx context.Context, died time.Time) (took time.Duration) {
	p.t.Helper()
	for number := range p.ranks {
		if number == p.victim {
			continue
		}
		stage := "failed"
		if p.place == "close" {
			stage = "closed"
		}
		s, ok := p.await(ctx, number, stage)
		if !ok {
			p.t.Errorf("rank %d has not %s", number, stage)
			continue
		}
		needed := s.At.Sub(died)
		if took = max(took, needed); needed > namedWithin {
			p.t.Errorf("rank %d needed %v: %s", number, needed, s.Text)
		}
		if stage == "failed" && !slices.Equal(s.Lost, []int{p.victim}) {
			p.t.Errorf("rank %d has lost %v: %s", number, s.Lost, s.Text)
		}
		if stage == "closed" && s.Text != "" {
			p.t.Errorf("rank %d closes with %s", number, s.Text)
		}
	}
	return took
}

// failedWithin returns the failure of a rank, if one comes within a time.
func (p *party) failedWithin(ctx context.Context, d time.Duration) (sighting, bool) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return p.awaitAny(ctx, func(s sighting) bool { return s.Stage == "failed" })
}

// wantNothingLeft looks for what should have gone with the processes.
func (p *party) wantNothingLeft() {
	p.t.Helper()
	for _, s := range p.seen {
		if err := syscall.Kill(s.PID, 0); !errors.Is(err, syscall.ESRCH) {
			p.t.Errorf("rank %d still runs: %v", s.Rank, err)
		}
	}
	if left := remains(p.t, nil, p.store); left != "" {
		p.t.Errorf("left behind: %s", left)
	}
	if left, err := os.ReadDir(p.folder); err != nil || len(left) > 0 {
		p.t.Errorf("temporary files are left: %v, %v", left, err)
	}
}
