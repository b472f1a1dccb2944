package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"symmem"
)

func signalsRankMain(text []byte) error {
	begin := time.Now()
	var task signalTask
	if err := json.Unmarshal(text, &task); err != nil {
		return err
	}

	w := &worker{
		ctx: context.Background(), plan: task.plan(), seed: task.Seed + uint64(task.Program)<<32,
	}
	var log logBuffer
	o := symmem.Options{
		Backend: "host", Timeout: w.plan.timeout(), WarnAfter: warnAfter,
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}
	if task.GPU {
		o.Backend, o.Path = "nccl", w.plan.path
	}

	var err error
	if w.plan.noLauncher {
		if o, err = ignoreLauncher(o); err != nil {
			return err
		}
	}

	if w.rank, err = strconv.Atoi(os.Getenv("RANK")); err != nil {
		return err
	}

	var waits starvation
	go waits.measure()
	err = w.work(o)
	line := signalLine{
		Rank: w.rank, Began: begin.UnixNano(), At: time.Now().UnixNano(), Call: w.call,
		Log:     log.lines(),
		Slowest: fmt.Sprintf("%s took %v", w.slowest, w.took), Starved: waits.sampleAll(),
	}
	if err != nil {
		line.Text = err.Error()
		var lost *symmem.RankLostError
		if errors.As(err, &lost) {
			line.Lost = lost.Ranks
		}

		if w.rt != nil {
			_ = w.rt.Close() // returns the same error
		}
	}

	return json.NewEncoder(os.Stdout).Encode(line)
}

const warnAfter = 200 * time.Millisecond

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *logBuffer) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *logBuffer) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.text.String()), "\n")
}

// worker makes calls as one rank. It continues until a rank has been killed or, in programs that
// stop a rank, until stopRest has passed since the stop.
type worker struct {
	ctx  context.Context
	plan *signalPlan
	seed uint64
	rank int
	rt   *symmem.Runtime
	// call is the current call, which began at callStart. slowest is the longest call so far, and
	// took is how long that call took.
	call, slowest string
	callStart     time.Time
	took          time.Duration
	// endTime is the time after which rank 0 ends the program if no rank is killed.
	endTime time.Time
	// own, sum and received hold this rank's contribution to a sum, the sum, and a received
	// message. memory holds the buffers that calls use for these three.
	own, sum, received []int32
	memory             [3]symmem.Memory
}

// joinedRounds is the number of rounds that run before a rank is killed in Runtime.Close.
const joinedRounds = 2

// stopRest is how long the ranks continue after a stop.
const stopRest = 200 * time.Millisecond

func (w *worker) work(o symmem.Options) (err error) {
	w.enter(callOpen, w.plan.round)
	if w.rt, err = symmem.Open(w.ctx, o); err != nil {
		return err
	}

	if w.rt.Rank() != w.rank {
		return fmt.Errorf("opened as rank %d", w.rt.Rank())
	}

	if err := w.allocate(); err != nil {
		return err
	}

	if w.plan.secondVictim >= 0 {
		return w.joinRepeatedly()
	}

	w.enter(anyCall, w.plan.round)
	w.endTime = time.Now().Add(w.plan.signalDelay + w.plan.stop + stopRest)
	for round := 0; ; round++ {
		if w.plan.call == callRuntimeClose && round == joinedRounds {
			break
		}

		if last, err := w.round(round); last || err != nil {
			if err != nil {
				return err
			}

			break
		}
	}

	w.enter(callRuntimeClose, w.plan.round)
	return w.rt.Close()
}

func (w *worker) allocate() error {
	w.own, w.sum = make([]int32, workElements), make([]int32, workElements)
	w.received = make([]int32, workElements)
	if w.rt.Device().Backend == "host" {
		for i := range w.memory {
			w.memory[i] = symmem.Host(make([]int32, workElements))
		}

		return nil
	}

	pool, err := w.rt.NewPool(symmem.PoolOptions{Domain: w.rt.World()})
	if err != nil {
		return err
	}

	for i := range w.memory {
		b, err := pool.Alloc(4 * workElements)
		if err != nil {
			return err
		}

		if w.memory[i], err = b.Memory().Slice(0, 4*workElements); err != nil {
			return err
		}
	}

	return nil
}

func (w *worker) beginCall(format string, args ...any) {
	if took := time.Since(w.callStart); w.call != "" && took > w.took {
		w.slowest, w.took = w.call, took
	}

	w.call, w.callStart = fmt.Sprintf(format, args...), time.Now()
}

// enter is called at the beginning of a call. If this is the call in which the victim gets the
// signal, the victim announces it, and the other ranks wait for their delays.
func (w *worker) enter(call string, round int) {
	w.beginCall("%s of round %d", call, round)
	if call != w.plan.call || round != w.plan.round {
		return
	}

	if w.rank == w.plan.victim || w.rank == w.plan.secondVictim {
		// Ignore errors: if this fails, no rank gets a signal, and the job counts as hung.
		_ = json.NewEncoder(os.Stdout).Encode(signalLine{
			Rank: w.rank, PID: os.Getpid(), Announces: true,
		})
		return
	}

	<-time.After(w.plan.delays[w.rank])
}

// round makes calls in the world and in two groups, which it creates and closes. last is set if
// rank 0 has ended the program.
func (w *worker) round(round int) (last bool, err error) {
	d := newDraws(w.seed, round)
	world := w.rt.World()
	if last, err = w.runCalls("world", world, round); last || err != nil {
		return last, err
	}

	w.enter(callSplit, round)
	sub, err := world.Split(w.ctx, w.rank%(1+d.IntN(2)), 0)
	if err != nil {
		return false, err
	}

	if err := w.useAndClose("the split group", sub, round); err != nil {
		return false, err
	}

	ranks := drawRanks(d, w.plan.ranks, w.plan.victim)
	// Skip Join if all ranks must log a warning, because Join logs none if the stopped rank is rank
	// 0, which serves the store.
	silent := w.plan.stop > 0 && w.plan.call == anyCall
	if !slices.Contains(ranks, w.rank) || silent {
		return false, nil
	}

	w.enter(callJoin, round)
	joined, err := w.rt.Join(w.ctx, fmt.Sprintf("join%d", round), ranks)
	if err != nil {
		return false, err
	}

	return false, w.useAndClose("the joined group", joined, round)
}

func (w *worker) joinRepeatedly() error {
	for round := 0; ; round++ {
		w.enter(callJoin, round)
		g, err := w.rt.Join(w.ctx, fmt.Sprintf("join%d", round), w.rt.World().Ranks())
		if err != nil {
			return err
		}

		if err := g.Close(); err != nil {
			return err
		}
	}
}

// drawRanks draws a subset of n ranks that contains the rank included.
func drawRanks(d *rand.Rand, n, included int) []int {
	ranks := []int{included}
	for _, r := range d.Perm(n)[:1+d.IntN(n)] {
		if r != included {
			ranks = append(ranks, r)
		}
	}

	return ranks
}

func (w *worker) useAndClose(name string, g *symmem.Group, round int) error {
	if _, err := w.runCalls(name, g, round); err != nil {
		return err
	}

	w.enter(callGroupClose, round)
	return g.Close()
}

// runCalls makes collectives and messages in a group, and checks their results. last is set if
// rank 0 has ended the program.
func (w *worker) runCalls(name string, g *symmem.Group, round int) (last bool, err error) {
	w.beginCall("collectives of %s of round %d", name, round)
	n := int64(workElements)
	for turn := range 3 {
		for i := range w.own {
			w.own[i] = contribution(w.rank, round+turn, i)
		}

		if w.own[n-1] = 0; w.rank == 0 && w.plan.stop > 0 && time.Now().After(w.endTime) {
			w.own[n-1] = 1
		}

		if err := w.makeCalls(g); err != nil {
			return false, err
		}

		if err := w.check(g, round+turn); err != nil {
			return false, err
		}

		last = last || w.sum[n-1] > 0
	}

	return last, nil
}

// makeCalls makes an all-reduce, a barrier, and a message from the group's first rank to its
// second, and waits for them.
func (w *worker) makeCalls(g *symmem.Group) error {
	s, n := w.rt.DefaultStream(), int64(workElements)
	own, sum, received := w.memory[0], w.memory[1], w.memory[2]
	for _, step := range []func() error{
		func() error { return s.Copy(own, symmem.Host(w.own)) },
		func() error { return g.AllReduce(w.ctx, own, sum, n, symmem.Int32, symmem.Sum, s) },
		func() error { return g.Barrier(w.ctx, s) },
		func() error {
			switch {
			case g.Rank() == 0 && g.Size() > 1 && w.messages():
				return g.Send(w.ctx, own, n, symmem.Int32, 1, s)
			case g.Rank() == 1 && w.messages():
				return g.Recv(w.ctx, received, n, symmem.Int32, 0, s)
			}

			return nil
		},
		func() error { return s.Copy(symmem.Host(w.sum), sum) },
		func() error { return s.Copy(symmem.Host(w.received), received) },
		func() error { return s.Synchronize(w.ctx) },
	} {
		if err := step(); err != nil {
			return err
		}
	}

	return nil
}

// messages reports whether messages are supported. They are not if the ranks are on several
// machines.
func (w *worker) messages() bool { return w.plan.machines <= 1 }

// workElements is the number of elements in a sum. Rank 0 sets the last element to end the
// program.
const workElements = 1500

func contribution(rank, round, i int) int32 { return int32((rank+1)*100_003 + round*1_009 + i) }

func (w *worker) check(g *symmem.Group, round int) error {
	for i := range workElements - 1 {
		want := int32(0)
		for _, r := range g.Ranks() {
			want += contribution(r, round, i)
		}

		if w.sum[i] != want {
			return fmt.Errorf("wrong result: element %d of a sum is %d, want %d", i, w.sum[i], want)
		}

		want = contribution(g.Ranks()[0], round, i)
		if g.Rank() == 1 && w.messages() && w.received[i] != want {
			return fmt.Errorf("wrong result: element %d of a message is %d, want %d", i, w.received[i], want)
		}
	}

	return nil
}
