package chaos

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"symmem"
)

// verdict compares the outcome of a program on this rank with the model's prediction. For example,
// if another rank skips a call, the stream and the group of the call must fail, and the buffers
// that the call does not write must have their predicted contents.
type verdict struct {
	*player
	*model
	endIndex int      // index of the op whose error ended the program, or the number of ops
	reported []string // errors that symmem returned
	failures []string // differences from the prediction
	// syncErrs holds errors that syncOps have returned, by stream. A stream returns an error only
	// once.
	syncErrs map[int]error
}

func (v *verdict) addFailure(format string, args ...any) {
	v.failures = append(v.failures, fmt.Sprintf(format, args...))
}

// check waits until all work has ended, and compares errors and buffers with the prediction.
func (v *verdict) check() {
	onStream, onEvent := v.synchronize()
	self := v.rt.Rank()
	v.mu.Lock()
	v.model.sources = v.player.sources
	v.model.rank = self
	v.mu.Unlock()
	v.model.run(v.endIndex)
	v.checkErrors(onStream, onEvent)
	for b := range v.data[self] {
		if v.isPredictable(b) && v.isComplete(self, b, onStream, onEvent) {
			v.compareBuffer(b)
		}
	}
}

// isPredictable reports whether a buffer exists and the model predicts its contents.
func (v *verdict) isPredictable(buffer int) bool {
	isFreed := v.memory[buffer] == (symmem.Memory{})
	isUndefined := v.undefined[v.rt.Rank()][buffer] || v.mayHaveWritten(buffer)
	return !isFreed && !isUndefined
}

// checkErrors adds a failure for each predicted error that a stream, an event or a group has not
// returned.
func (v *verdict) checkErrors(onStream, onEvent map[int]error) {
	self := v.rt.Rank()
	for stream, err := range onStream {
		opIndex := v.streamFailsAt[self][stream]
		shouldFail := opIndex != never
		if shouldFail && err == nil {
			v.addFailure("stream %d returned no error, but its op %d should have failed", stream,
				opIndex)
		}
	}

	for event, err := range onEvent {
		shouldFail := v.eventFails[self][event]
		if shouldFail && err == nil {
			v.addFailure("event %d returned no error, but was recorded after a failure", event)
		}
	}

	const maxGroupDelay = 3 * time.Second // from the failure of a stream to that of its group
	ctx, cancel := context.WithTimeout(v.ctx, maxGroupDelay)
	defer cancel()
	for group, opIndex := range v.groupFailsAt[self] {
		shouldFail := opIndex != never
		if shouldFail && !hasGroupFailed(ctx, v.groups[group]) {
			v.addFailure("group %d has no error, but its call in op %d should have failed", group,
				opIndex)
		}
	}
}

// finish ends a program without a mistake. Any error is a failure. After a success, finish releases
// the resources.
func (v *verdict) finish() {
	if len(v.reported) > 0 {
		v.addFailure("valid program returned errors: %q", v.reported)
	}

	if len(v.failures) > 0 {
		return
	}

	if err := v.release(); err != nil {
		v.addFailure("releasing: %v", err)
	}
}

func (v *verdict) compareBuffer(b int) {
	self := v.rt.Rank()
	size := v.model.p.buffers[b].bytes
	got := make([]byte, size)
	s := v.auxiliary
	err := s.Copy(symmem.Host(got), v.memory[b])
	if err == nil {
		err = s.Synchronize(v.ctx)
	}

	if err != nil {
		v.addFailure("reading buffer %d: %v", b, err)
		return
	}

	want := v.data[self][b].part(0, size)
	if bytes.Equal(got, want) {
		return
	}

	const maxPrintedBytes = 8
	index := firstDifference(got, want)
	end := min(index+maxPrintedBytes, size)
	v.addFailure("wrong result without an error: buffer %d has %x at byte %d, want %x; last write: "+
		"op %d", b, got[index:end], index, want[index:end], v.lastWrite[self][b])
}

// firstDifference returns the index of the first element in which got differs from want, or -1.
func firstDifference[T byte | float32](got, want []T) int {
	for i := range want {
		if got[i] != want[i] {
			return i
		}
	}

	return -1
}

// synchronize waits for all streams and recorded events in random order, and returns their errors.
func (v *verdict) synchronize() (onStream, onEvent map[int]error) {
	onStream = map[int]error{}
	onEvent = map[int]error{}
	order := v.noise.Perm(len(v.streams) + len(v.events)) // numbers of streams, then events
	doProgramsShareAPool := v.task.ProgramsPerWorld > 1
	if doProgramsShareAPool {
		slices.Sort(order) // because the history of the pool must be the same on all ranks
	}

	for _, i := range order {
		isStream := i < len(v.streams)
		if isStream {
			err := v.streams[i].Synchronize(v.ctx)
			onStream[i] = cmp.Or(v.syncErrs[i], err)
			v.recordError("stream", i, onStream[i])
			continue
		}

		event := i - len(v.streams)
		if v.wasRecorded(event) {
			onEvent[event] = v.events[event].Synchronize(v.ctx)
			v.recordError("event", event, onEvent[event])
		}
	}

	return onStream, onEvent
}

func (v *verdict) recordError(source string, number int, err error) {
	if err != nil {
		v.reported = append(v.reported, fmt.Sprintf("%s %d: %v", source, number, err))
	}
}

func (v *verdict) wasRecorded(event int) bool {
	return slices.ContainsFunc(v.player.p.ops[:v.endIndex], func(o op) bool {
		return o.kind == recordOp && o.event == event
	})
}

// hasGroupFailed waits for the group to fail until ctx ends.
func hasGroupFailed(ctx context.Context, g *symmem.Group) bool {
	select {
	case <-g.Ended():
		return g.Err() != nil
	case <-ctx.Done():
		return false
	}
}

// mayHaveWritten reports whether the op whose error ended the program may have written to a buffer.
func (v *verdict) mayHaveWritten(buffer int) bool {
	p := v.player.p
	haveAllOpsSucceeded := v.endIndex == len(p.ops)
	if haveAllOpsSucceeded {
		return false
	}

	return slices.ContainsFunc(p.body(&p.ops[v.endIndex]), func(o op) bool {
		isWriteKind := o.kind <= allocOp // later kinds write to no buffer
		return isWriteKind && o.recv == buffer
	})
}

// isComplete reports whether the last write to a buffer is known to be complete: the stream of the
// write, or a later event on that stream, was synchronized without an error.
func (m *model) isComplete(rank, buffer int, onStream, onEvent map[int]error) bool {
	writeIndex := m.lastWrite[rank][buffer]
	wasNeverWritten := writeIndex < 0
	if wasNeverWritten {
		return true
	}

	stream := m.p.ops[writeIndex].recvStream
	err, isSynchronized := onStream[stream]
	if isSynchronized && err == nil {
		return true
	}

	for event, err := range onEvent {
		recordIndex := m.recordOp[event]
		isAfterWrite := recordIndex > writeIndex && m.p.ops[recordIndex].stream == stream
		if isAfterWrite && err == nil {
			return true
		}
	}

	return false
}
