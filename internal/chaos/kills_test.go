package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"symmem"
)

// killsTask is what a rank is told.
type killsTask struct {
	Seed    uint64
	Program int
}

// The calls in which ranks are killed.
const (
	inOpen  = "Open"
	inSplit = "Split"
	inJoin  = "Join"
	inLeave = "Group.Close"
	inClose = "Runtime.Close"
	// anywhere is at any time once the world is open.
	anywhere = "any call"
)

// killPlan says when which rank is killed.
type killPlan struct {
	ranks, victim int
	bare          bool
	// in is the call, and round the round of the program, which the victim announces; it is killed
	// some time after that.
	in    string
	round int
	after time.Duration
	// late is for how long each rank holds back when it comes to that call.
	late []time.Duration
}

// plan draws when a rank is killed: in half of the programs while it makes a call that makes or
// ends something.
func (t *killsTask) plan() *killPlan {
	d := newDraws(t.Seed, t.Program)
	p := &killPlan{
		ranks: 2 + d.IntN(3), bare: d.IntN(2) == 0, in: anywhere, round: d.IntN(4),
		after: time.Duration(d.IntN(int(300 * time.Millisecond))),
	}
	p.victim = d.IntN(p.ranks)
	if d.IntN(2) == 0 {
		p.in = []string{inOpen, inSplit, inJoin, inLeave, inClose}[d.IntN(5)]
		p.after = time.Duration(d.IntN(int(30 * time.Millisecond)))
	}
	for r := range p.ranks {
		late := time.Duration(d.IntN(int(40 * time.Millisecond)))
		if r == p.victim || d.IntN(2) == 0 {
			late = 0
		}
		p.late = append(p.late, late)
	}
	return p
}

func (p *killPlan) String() string {
	how := "under the launcher"
	if p.bare {
		how = "without the launcher"
	}
	return fmt.Sprintf("%d ranks %s, rank %d killed %v after it came to %s of round %d", p.ranks,
		how, p.victim, p.after, p.in, p.round)
}

const (
	// killTimeout is Options.Timeout: far longer than anybody may take to name a rank that died.
	killTimeout = 30 * time.Second
	// openTimeout is that of ranks without a launcher, of which one dies in Open: they may not know
	// yet that there is one.
	openTimeout = 4 * time.Second
	// named is how soon a survivor names a rank that died.
	named = 3 * time.Second
	// killLimit bounds a program.
	killLimit = 60 * time.Second
)

func (p *killPlan) timeout() time.Duration {
	if p.bare && p.in == inOpen {
		return openTimeout
	}
	return killTimeout
}

// killLine is what a rank writes: that it comes to the call in which it is killed, or how it ended.
type killLine struct {
	Rank, PID int
	// Announces reports whether this is the victim, whose end may come.
	Announces bool
	// At is when the rank was told of an error by a call, in nanoseconds since 1970, or was closed
	// without one.
	At   int64
	Call string
	// Text is the error, and Lost the ranks of a RankLostError.
	Text string
	Lost []int
}

// TestKills kills a rank with SIGKILL at any moment, in half of the programs inside of Open, Split,
// Join, Group.Close or Runtime.Close, with and without the launcher. Every other rank must name it
// within three seconds, and nothing may be left behind.
func TestKills(t *testing.T) {
	bar{programs: 16, each: 1, run: kills}.meet(t)
}

func kills(ctx context.Context, number, _ int) error {
	task := killsTask{Seed: *seedFlag, Program: number}
	p := task.plan()
	x := &killer{plan: p}
	before := sharedMemory()
	folder, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	j := job{
		role: "kills", ranks: p.ranks, task: task, limit: killLimit, hear: x.hear, bare: p.bare,
		folder: folder,
	}
	result, err := j.run(ctx)
	x.pending.Wait()
	var bad []error
	if err != nil {
		bad = append(bad, err)
	} else {
		died := result.Exits[p.victim].Signal == syscall.SIGKILL
		bad = append(bad, x.verdict(died)...)
	}
	if left := j.remains(before); left != "" {
		bad = append(bad, fmt.Errorf("left behind: %s", left))
	}
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("program %d: %v: %w\n%s", number, p, errors.Join(bad...), x.said())
}

// killer kills the victim and collects what the ranks say.
type killer struct {
	plan    *killPlan
	pending sync.WaitGroup // the kill

	mu        sync.Mutex
	announced bool       // guarded by mu
	killed    time.Time  // when; guarded by mu
	lines     []killLine // guarded by mu
	other     []string   // guarded by mu
}

func (x *killer) hear(line string) {
	var l killLine
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		x.other = append(x.other, line)
		return
	}
	if !l.Announces {
		x.lines = append(x.lines, l)
		return
	}
	if x.announced {
		return // the second time that it makes such a call in the round
	}
	x.announced = true
	x.pending.Go(func() {
		<-time.After(x.plan.after)
		x.mu.Lock()
		defer x.mu.Unlock()
		x.killed = time.Now()
		// It fails for a rank that has closed everything and ended meanwhile.
		_ = syscall.Kill(l.PID, syscall.SIGKILL)
	})
}

// verdict is what is wrong about what the survivors say.
func (x *killer) verdict(died bool) (bad []error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	heard := map[int]bool{}
	for i := range x.lines {
		l := &x.lines[i]
		heard[l.Rank] = true
		if err := x.judge(l, died); err != nil && l.Rank != x.plan.victim {
			bad = append(bad, fmt.Errorf("rank %d, in %s: %w", l.Rank, l.Call, err))
		}
	}
	for r := range x.plan.ranks {
		if !heard[r] && r != x.plan.victim {
			bad = append(bad, fmt.Errorf("rank %d has said nothing", r))
		}
	}
	if len(x.other) > 0 {
		bad = append(bad, fmt.Errorf("other output: %q", x.other))
	}
	return bad
}

// judge says what is wrong about what a survivor says.
func (x *killer) judge(l *killLine, died bool) error {
	p := x.plan
	took := time.Unix(0, l.At).Sub(x.killed)
	limit := named
	if p.bare && p.in == inOpen {
		limit += openTimeout
	}
	switch {
	case l.Text == "" && p.in == inClose && took <= limit:
		return nil // it needed nobody any more
	case !died:
		return fmt.Errorf("an error, although no rank died: %s", l.Text)
	case took > limit:
		return fmt.Errorf("ended %v after the kill: %s", took, l.Text)
	case took < 0:
		return fmt.Errorf("an error before the kill: %s", l.Text)
	case p.bare && p.in == inOpen && mentions(l.Text, p.victim):
		return nil // not every rank that dies there was known to anybody
	case !slices.Equal(l.Lost, []int{p.victim}):
		return fmt.Errorf("does not say that rank %d is lost: %s", p.victim, l.Text)
	}
	return nil
}

// mentions reports whether a text names a rank.
func mentions(text string, rank int) bool {
	return regexp.MustCompile(`ranks? \[?([0-9]+, ?)*` + strconv.Itoa(rank) + `\b`).MatchString(text)
}

func (x *killer) said() (text string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.lines {
		text += fmt.Sprintf("rank %d in %s after %v: %s\n", l.Rank, l.Call,
			time.Unix(0, l.At).Sub(x.killed), l.Text)
	}
	return text
}

// killsRank is the main function of a rank.
func killsRank(text []byte) error {
	var task killsTask
	if err := json.Unmarshal(text, &task); err != nil {
		return err
	}
	plan := task.plan()
	o, err := placed(symmem.Options{Backend: "host", Timeout: plan.timeout()})
	if err != nil {
		return err
	}
	w := &worker{ctx: context.Background(), plan: plan, seed: task.Seed + uint64(task.Program)<<32}
	w.rank, err = strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		return err
	}
	err = w.work(o)
	line := killLine{Rank: w.rank, At: time.Now().UnixNano(), Call: w.call}
	if err != nil {
		line.Text = err.Error()
		var lost *symmem.RankLostError
		if errors.As(err, &lost) {
			line.Lost = lost.Ranks
		}
		if w.rt != nil {
			// What it says was said before.
			_ = w.rt.Close()
		}
	}
	return json.NewEncoder(os.Stdout).Encode(line)
}

// worker is a rank that works until another one is killed, or it is itself.
type worker struct {
	ctx  context.Context
	plan *killPlan
	seed uint64
	rank int
	rt   *symmem.Runtime
	// call is the one that the rank makes.
	call string
	data symmem.Memory
}

// joinedRounds is how many rounds there are if a rank is killed in Runtime.Close.
const joinedRounds = 2

// work opens the world and does rounds until one fails.
func (w *worker) work(o symmem.Options) (err error) {
	w.come(inOpen, w.plan.round)
	if w.rt, err = symmem.Open(w.ctx, o); err != nil {
		return err
	}
	if w.rt.Rank() != w.rank {
		return fmt.Errorf("opened as rank %d", w.rt.Rank())
	}
	w.data = symmem.Host(make([]int32, 3000))
	w.come(anywhere, w.plan.round)
	for round := 0; ; round++ {
		if w.plan.in == inClose && round == joinedRounds {
			break
		}
		if err := w.round(round); err != nil {
			return err
		}
	}
	w.come(inClose, w.plan.round)
	return w.rt.Close()
}

// come notes which call is made. The victim announces the one in which it is killed, and the others
// come late to it.
func (w *worker) come(call string, round int) {
	w.call = fmt.Sprintf("%s of round %d", call, round)
	if call != w.plan.in || round != w.plan.round {
		return
	}
	if w.rank == w.plan.victim {
		// Without it nobody dies, and the program does not end.
		_ = json.NewEncoder(os.Stdout).Encode(killLine{
			Rank: w.rank, PID: os.Getpid(), Announces: true,
		})
		return
	}
	<-time.After(w.plan.late[w.rank])
}

// round makes some collectives, in the world and in groups that are made and closed again.
func (w *worker) round(round int) error {
	d := newDraws(w.seed, round)
	world := w.rt.World()
	if err := w.sums("world", world, round); err != nil {
		return err
	}
	w.come(inSplit, round)
	sub, err := world.Split(w.ctx, w.rank%(1+d.IntN(2)), 0)
	if err != nil {
		return err
	}
	if err := w.use("the split", sub, round); err != nil {
		return err
	}
	ranks := drawRanks(d, w.plan.ranks, w.plan.victim)
	if !slices.Contains(ranks, w.rank) {
		return nil
	}
	w.come(inJoin, round)
	joined, err := w.rt.Join(w.ctx, fmt.Sprintf("join%d", round), ranks)
	if err != nil {
		return err
	}
	return w.use("the joined", joined, round)
}

// drawRanks draws some ranks, among them one that is given.
func drawRanks(d *rand.Rand, n, among int) []int {
	ranks := []int{among}
	for _, r := range d.Perm(n)[:1+d.IntN(n)] {
		if r != among {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// use makes collectives of a group and closes it.
func (w *worker) use(name string, g *symmem.Group, round int) error {
	if err := w.sums(name, g, round); err != nil {
		return err
	}
	w.come(inLeave, round)
	return g.Close()
}

// sums makes some collectives, and messages to the next rank.
func (w *worker) sums(name string, g *symmem.Group, round int) error {
	w.call = fmt.Sprintf("collectives of %s of round %d", name, round)
	half := w.data.Bytes() / 2
	a, err := w.data.Slice(0, half)
	if err != nil {
		return err
	}
	b, err := w.data.Slice(half, half)
	if err != nil {
		return err
	}
	s, n := w.rt.DefaultStream(), half/4
	for range 3 {
		err := g.AllReduce(w.ctx, a, b, n, symmem.Int32, symmem.Sum, s)
		if err == nil {
			err = g.Barrier(w.ctx, s)
		}
		if err == nil && g.Size() > 1 && g.Rank() < 2 {
			peer := 1 - g.Rank()
			if g.Rank() == 0 {
				err = g.Send(w.ctx, a, n, symmem.Int32, peer, s)
			} else {
				err = g.Recv(w.ctx, b, n, symmem.Int32, peer, s)
			}
		}
		if err == nil {
			err = s.Synchronize(w.ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
