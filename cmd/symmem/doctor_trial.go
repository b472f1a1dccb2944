package main

import (
	"context"
	"errors"
	"time"

	"symmem"
	"symmem/cmd/symmem/internal/doctor"
	"symmem/cmd/symmem/internal/proof"
	"symmem/cmd/symmem/internal/workload"
	"symmem/internal/rendezvous"
)

// trialSizes contains a small size to measure latency and a large size to measure bandwidth.
var trialSizes = []struct {
	bytes   int64
	repeats int // number of timed calls
}{
	{bytes: 4 << 10, repeats: 50},
	{bytes: 16 << 20, repeats: 5},
}

// elementBytes is the size of a float32, the type that trials reduce.
const elementBytes = 4

// trial runs all-reduces on this rank, checks the sums and measures the times. All ranks of the
// world run it together. It tries each path, which is an implementation of the all-reduce.
type trial struct {
	rt              *symmem.Runtime        // nil until openRuntime succeeds
	buffer          symmem.Buffer          // registered; has the largest of trialSizes
	recorder        *proof.Recorder        // reads NCCL's log; nil with --backend host
	rankZeroResults doctor.RankZeroResults // reported on rank 0 only
	result          doctor.RankResult
	// openTimeout limits the time until all ranks have started and connected. If it is 0, only the
	// context limits this time.
	openTimeout time.Duration
	// afterCalls, if set, runs after the all-reduces and before the Runtime is closed.
	afterCalls func(context.Context) error
}

// runTrial runs a trial on this rank for doctor. The result contains the error, if there is one.
func runTrial(
	ctx context.Context, world rendezvous.World, backend string, timeout time.Duration,
) doctor.RankResult {
	t := &trial{result: doctor.RankResult{Rank: world.Rank, Calls: []doctor.TrialCall{}}}
	if world.Rank == 0 {
		t.result.RankZeroResults = &t.rankZeroResults
	}

	if err := t.run(ctx, backend, timeout); err != nil {
		t.result.Error = err.Error()
		return t.result
	}

	if world.Rank == 0 && t.usesNCCL() { // all ranks have finished the all-reduces
		copies, err := doctor.MeasureCopies(world.LocalRank)
		t.rankZeroResults.Copies = copies
		if err != nil {
			t.rankZeroResults.CopyProblem = err.Error()
		}
	}

	return t.result
}

func (t *trial) usesNCCL() bool { return t.rt.Device().Backend == "nccl" }

// hiddenDeadline is a context that ends at its deadline, but returns no deadline. symmem limits
// each wait to Options.Timeout only if the context has no deadline.
type hiddenDeadline struct{ context.Context }

func (hiddenDeadline) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// run runs the trial and stores its results in t.
func (t *trial) run(ctx context.Context, backend string, timeout time.Duration) (err error) {
	if backend != "host" {
		t.recorder, err = proof.Start()
		if err != nil {
			return err
		}

		defer func() {
			closeErr := t.recorder.Close()
			err = errors.Join(err, closeErr)
		}()
	}

	if err := t.openRuntime(ctx, backend, timeout); err != nil {
		return err
	}

	defer func() {
		closeErr := t.rt.Close()
		err = errors.Join(err, closeErr)
	}()
	t.rankZeroResults.Source = t.rt.Source()
	t.rankZeroResults.Device = t.rt.Device().Name
	hasLog := t.rt.Rank() == 0 && t.recorder != nil && t.usesNCCL() // only rank 0 has a log
	if hasLog {
		t.rankZeroResults.IsLogRequested = true
		t.rankZeroResults.LogProblem = t.recorder.Problem()
	}

	ctx = hiddenDeadline{ctx}
	if err := t.registerBuffer(ctx); err != nil {
		return err
	}

	if err := t.runAllCalls(ctx); err != nil {
		return err
	}

	if err := t.recordWindowProblem(); err != nil {
		return err
	}

	if t.afterCalls == nil {
		return nil
	}

	return t.afterCalls(ctx)
}

// recordWindowProblem stores why NCCL did not use windows (registered memory), if its log says so.
func (t *trial) recordWindowProblem() (err error) {
	hasLog := t.rankZeroResults.IsLogRequested && t.rankZeroResults.LogProblem == ""
	if hasLog && t.rt.Size() > 1 {
		t.rankZeroResults.WindowProblem, err = t.recorder.WhyNoWindows()
	}

	return err
}

// openRuntime opens symmem within t.openTimeout.
func (t *trial) openRuntime(
	ctx context.Context, backend string, timeout time.Duration,
) (err error) {
	if t.openTimeout > 0 {
		limited, cancel := context.WithTimeout(ctx, t.openTimeout)
		defer cancel()
		ctx = limited
	}

	t.rt, err = symmem.Open(ctx, symmem.Options{
		Backend: backend, Path: symmem.PathWindow, Timeout: timeout,
	})
	return err
}

// runAllCalls all-reduces each size on each path.
func (t *trial) runAllCalls(ctx context.Context) error {
	for _, choice := range t.pathsToTry() {
		if err := t.rt.World().SetPath(ctx, choice); err != nil {
			return err
		}

		for _, size := range trialSizes {
			if err := t.runCall(ctx, choice, size.bytes, size.repeats); err != nil {
				return err
			}
		}
	}

	return nil
}

func (t *trial) pathsToTry() []symmem.PathChoice {
	choices := []symmem.PathChoice{symmem.PathWindow, symmem.PathPlain}
	if t.usesNCCL() {
		choices = append(choices, symmem.PathDirect)
	}

	return choices
}

// registerBuffer allocates the buffer and registers it with the world.
func (t *trial) registerBuffer(ctx context.Context) error {
	bytes := trialSizes[len(trialSizes)-1].bytes // the last size is the largest
	pool, err := t.rt.NewPool(symmem.PoolOptions{Domain: t.rt.World(), FirstSegment: bytes})
	if err != nil {
		return err
	}

	err = pool.With(ctx, t.rt.World(), func(s *symmem.Scope) error {
		buffer, err := s.Alloc(bytes)
		t.buffer = buffer
		return err
	})
	t.result.WindowCount = t.rt.World().Stats().Windows
	return err
}

// runCall all-reduces part of the buffer in place, checks the result and measures the time.
func (t *trial) runCall(
	ctx context.Context, choice symmem.PathChoice, bytes int64, repeats int,
) error {
	memory, err := t.buffer.Memory().Slice(0, bytes)
	if err != nil {
		return err
	}

	explanation, err := t.rt.World().Explain(symmem.OpAllReduce, memory, memory,
		bytes/elementBytes, symmem.Float32)
	if err != nil {
		return err
	}

	call := doctor.TrialCall{
		Operation: explanation.Operation, Bytes: bytes, RequestedPath: choice.String(),
		Path: explanation.Path, PathReason: explanation.Why,
	}
	earlierLaunches := t.countLaunches()
	if err := t.checkSums(ctx, memory, &call); err != nil {
		return err
	}

	t.recordKernel(&call, earlierLaunches)
	call.Microseconds, err = t.measureMicroseconds(ctx, memory, repeats)
	if err != nil {
		return err
	}

	t.result.Calls = append(t.result.Calls, call)
	return nil
}

// repeatAllReduce all-reduces the memory in place several times, and waits for the last result.
func (t *trial) repeatAllReduce(ctx context.Context, m symmem.Memory, times int) error {
	var defaultStream *symmem.Stream // nil stands for it
	count := m.Bytes() / elementBytes
	for range times {
		err := t.rt.World().AllReduce(ctx, m, m, count, symmem.Float32, symmem.Sum, defaultStream)
		if err != nil {
			return err
		}
	}

	return t.rt.DefaultStream().Synchronize(ctx)
}

// checkSums all-reduces known numbers, and stores in c how many of the sums are wrong.
func (t *trial) checkSums(ctx context.Context, m symmem.Memory, c *doctor.TrialCall) error {
	stream := t.rt.DefaultStream()
	transfer := workload.Transfer{
		Pattern: workload.Pattern{
			Operation: symmem.OpAllReduce, DataType: symmem.Float32, ReduceOp: symmem.Sum,
			Count: m.Bytes() / elementBytes, Ranks: t.rt.Size(),
		},
		Group: t.rt.World(), Send: m, Recv: m,
	}
	if err := transfer.Fill(stream); err != nil {
		return err
	}

	if err := transfer.Launch(ctx, stream, stream); err != nil {
		return err
	}

	if err := transfer.Read(stream); err != nil {
		return err
	}

	err := stream.Synchronize(ctx)
	c.WrongCount = transfer.Compare(transfer.Got, transfer.Output(t.rt.Rank())).Wrong
	return err
}

// measureMicroseconds returns the mean time of a call in microseconds, after a warm-up. It first
// fills the memory with zeros, so that sums cannot overflow.
func (t *trial) measureMicroseconds(
	ctx context.Context, memory symmem.Memory, repeats int,
) (float64, error) {
	const zero = 0
	if err := t.rt.DefaultStream().Fill(memory, zero); err != nil {
		return 0, err
	}

	if err := t.repeatAllReduce(ctx, memory, repeats); err != nil { // the warm-up
		return 0, err
	}

	start := time.Now()
	err := t.repeatAllReduce(ctx, memory, repeats)
	microseconds := float64(time.Since(start).Nanoseconds()) / 1e3
	return microseconds / float64(repeats), err
}

// countLaunches returns the number of kernel launches in NCCL's log, or 0 if it cannot be read.
func (t *trial) countLaunches() int {
	if !t.rankZeroResults.IsLogRequested {
		return 0
	}

	log, err := t.recorder.Read()
	if err != nil {
		return 0 // recordKernel reads the log again
	}

	return len(log)
}

// recordKernel stores in c which kernel performed the call, as found in NCCL's log after the
// earlier launches. The direct path does not use NCCL's kernels.
func (t *trial) recordKernel(c *doctor.TrialCall, earlierLaunches int) {
	if !t.rankZeroResults.IsLogRequested || c.Path == symmem.PathDirect.String() {
		return
	}

	log, err := t.recorder.Read()
	if err != nil {
		t.rankZeroResults.LogProblem = err.Error()
		return
	}

	elements := c.Bytes / elementBytes
	collective := proof.CollectiveOf(c.Operation, elements, elementBytes)
	newLaunches := log[earlierLaunches:]
	kernels := newLaunches.KernelsOf(collective)
	if kernels.Logged {
		c.Kernel = kernels.Description
		c.UsedWindows = kernels.Windowed
	}
}
