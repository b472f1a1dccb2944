package main

import (
	"context"
	"errors"
	"time"

	"symmem"
	"symmem/internal/doctor"
	"symmem/internal/proof"
	"symmem/internal/rendezvous"
)

// trialSizes are the sizes of the trial in bytes, for latency and for bandwidth, and how many
// calls are timed, after as many that are not. The last is that of the segment.
var trialSizes = []struct {
	bytes   int64
	repeats int
}{{4 << 10, 50}, {16 << 20, 5}}

// trial is one rank of a doctor's trial.
type trial struct {
	rt       *symmem.Runtime
	buffer   symmem.Buffer
	recorder *proof.Recorder // nil if nothing is logged
	account  doctor.Account
}

// runTrial is a whole trial on one rank. Errors are in the account.
func runTrial(
	ctx context.Context, world rendezvous.World, backend string, timeout time.Duration,
) doctor.Account {
	t := &trial{account: doctor.Account{Rank: world.Rank, Calls: []doctor.TrialCall{}}}
	if err := t.run(ctx, backend, timeout); err != nil {
		t.account.Error = err.Error()
	}
	if t.account.Rank != 0 || t.account.Error != "" || backend == "host" {
		return t.account
	}
	copies, err := t.copies(world.LocalRank)
	if t.account.Copies = copies; err != nil {
		t.account.CopyTrouble = err.Error()
	}
	return t.account
}

// copies measures copies to this rank's GPU, if it has one. The ranks' own work has ended.
func (t *trial) copies(local int) ([]doctor.Copy, error) {
	if t.rt.Device().Backend != "nccl" {
		return nil, nil
	}
	return doctor.MeasureCopies(local)
}

func (t *trial) run(ctx context.Context, backend string, timeout time.Duration) (err error) {
	if backend != "host" {
		if t.recorder, err = proof.Start(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.recorder.Close()) }()
	}
	t.rt, err = symmem.Open(ctx, symmem.Options{
		Backend: backend, Path: symmem.PathWindow, Timeout: timeout,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.rt.Close()) }()
	t.introduce()
	if err := t.register(ctx); err != nil {
		return err
	}
	for _, choice := range t.choices() {
		if err := t.rt.World().SetPath(ctx, choice); err != nil {
			return err
		}
		for _, size := range trialSizes {
			if err := t.call(ctx, choice, size.bytes, size.repeats); err != nil {
				return err
			}
		}
	}
	return nil
}

// choices are the paths that are tried. The host has no direct one.
func (t *trial) choices() []symmem.PathChoice {
	choices := []symmem.PathChoice{symmem.PathWindow, symmem.PathPlain}
	if t.rt.Device().Backend == "nccl" {
		choices = append(choices, symmem.PathDirect)
	}
	return choices
}

// introduce fills in what only rank 0 tells.
func (t *trial) introduce() {
	if t.rt.Rank() != 0 {
		return
	}
	a := &t.account
	a.Source, a.Device = t.rt.Source(), t.rt.Device().Name
	if t.recorder != nil && t.rt.Device().Backend == "nccl" {
		a.Logged, a.Trouble = true, t.recorder.Trouble()
	}
}

// register makes one segment and registers it.
func (t *trial) register(ctx context.Context) error {
	bytes := trialSizes[len(trialSizes)-1].bytes
	pool, err := t.rt.NewPool(symmem.PoolOptions{Domain: t.rt.World(), FirstSegment: bytes})
	if err != nil {
		return err
	}
	err = pool.With(ctx, t.rt.World(), func(s *symmem.Scope) (err error) {
		t.buffer, err = s.Alloc(bytes)
		return err
	})
	t.account.Windows = t.rt.World().Stats().Windows
	return err
}

// call all-reduces a part of the buffer in place, checks it and times it.
func (t *trial) call(
	ctx context.Context, choice symmem.PathChoice, bytes int64, repeats int,
) error {
	m, err := t.buffer.Memory().Slice(0, bytes)
	if err != nil {
		return err
	}
	count, world := bytes/4, t.rt.World()
	why, err := world.Explain(symmem.OpAllReduce, m, m, count, symmem.Float32)
	if err != nil {
		return err
	}
	c := doctor.TrialCall{
		Operation: why.Operation, Bytes: bytes, Asked: choice.String(), Path: why.Path, Why: why.Why,
	}
	seen := t.launches()
	data := make([]float32, count)
	if err := t.check(ctx, m, data, &c); err != nil {
		return err
	}
	t.prove(&c, seen)
	if c.MicroS, err = t.time(ctx, m, data, repeats); err != nil {
		return err
	}
	t.account.Calls = append(t.account.Calls, c)
	return nil
}

// reduce all-reduces and waits.
func (t *trial) reduce(ctx context.Context, m symmem.Memory, count int64, times int) error {
	for range times {
		err := t.rt.World().AllReduce(ctx, m, m, count, symmem.Float32, symmem.Sum, nil)
		if err != nil {
			return err
		}
	}
	return t.rt.DefaultStream().Synchronize(ctx)
}

// check counts elements of a sum that are wrong. Rank r gives r+1 everywhere, so sums are whole
// numbers, without rounding.
func (t *trial) check(
	ctx context.Context, m symmem.Memory, data []float32, c *doctor.TrialCall,
) error {
	stream, n := t.rt.DefaultStream(), t.rt.Size()
	for i := range data {
		data[i] = float32(t.rt.Rank() + 1)
	}
	if err := stream.Copy(m, symmem.Host(data)); err != nil {
		return err
	}
	if err := t.reduce(ctx, m, int64(len(data)), 1); err != nil {
		return err
	}
	if err := stream.Copy(symmem.Host(data), m); err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil {
		return err
	}
	for _, v := range data {
		if v != float32(n*(n+1)/2) {
			c.Wrong++
		}
	}
	return nil
}

// time measures calls on zeros, whose sums stay zeros, in microseconds a call.
func (t *trial) time(
	ctx context.Context, m symmem.Memory, data []float32, repeats int,
) (float64, error) {
	clear(data)
	if err := t.rt.DefaultStream().Copy(m, symmem.Host(data)); err != nil {
		return 0, err
	}
	if err := t.reduce(ctx, m, int64(len(data)), repeats); err != nil {
		return 0, err
	}
	start := time.Now()
	err := t.reduce(ctx, m, int64(len(data)), repeats)
	return float64(time.Since(start).Nanoseconds()) / 1e3 / float64(repeats), err
}

// launches is the number of launches that NCCL has logged on this rank.
func (t *trial) launches() int {
	if !t.account.Logged {
		return 0
	}
	log, err := t.recorder.Read()
	if err != nil {
		return 0
	}
	return len(log)
}

// prove notes what NCCL has logged of the call since so many launches.
func (t *trial) prove(c *doctor.TrialCall, seen int) {
	if !t.account.Logged || c.Path == symmem.PathDirect.String() {
		return
	}
	log, err := t.recorder.Read()
	if err != nil {
		t.account.Trouble = err.Error()
		return
	}
	a := log[seen:].Prove(proof.Wanted(c.Operation, c.Bytes/4, 4))
	if a.Logged {
		c.Kernel, c.Windowed = a.What, a.Windowed
	}
}
