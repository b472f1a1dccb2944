package random

import (
	"context"
	"errors"
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// recording is a list of calls and, after their capture, a graph that replays them. After each
// call, the graph copies the result to a separate buffer. The buffers of the calls may thus be
// freed while the graph exists. If the pool reused their memory before the graph is closed, the
// copied results would be wrong.
type recording struct {
	graph graph // set by graphs.captureOn
	// capturedByLibrary is set if another library (environment.library) captured the graph. The graph
	// must then be launched on the streams of that library. Pools do not know which buffers it uses,
	// so the buffers must not be freed before the graph is closed.
	capturedByLibrary bool
	group             int // index in groups.all of the group of all calls
	calls             []*testCall
	resultCopies      []symmem.Buffer // resultCopies[i] receives the result of calls[i]
	liveBuffers       []symmem.Buffer // buffers of the calls that have not been freed
}

// graph is a *symmem.Graph or a *program.LibraryGraph.
type graph interface {
	Launch(s *symmem.Stream) error
	Close() error
}

// addCall adds a call, allocates three buffers for it from p, each with the given size, and queues
// a write of the input on s.
func (rec *recording) addCall(
	call *testCall, s *symmem.Stream, p *symmem.Pool, bytes int64,
) error {
	var buffers [3]symmem.Buffer
	for i := range buffers {
		b, err := p.AllocOn(s, bytes)
		if err != nil {
			return err
		}

		buffers[i] = b
	}

	input, output, resultCopy := buffers[0], buffers[1], buffers[2]
	if err := call.Place(input.Memory(), output.Memory()); err != nil {
		return err
	}

	call.inputStream = s
	call.stream = s
	rec.calls = append(rec.calls, call)
	rec.resultCopies = append(rec.resultCopies, resultCopy)
	rec.liveBuffers = append(rec.liveBuffers, input, output)
	return call.Fill(s)
}

// capture captures the calls on a stream of symmem.
func (rec *recording) capture(ctx context.Context, s *symmem.Stream) (graph, error) {
	if err := s.BeginCapture(); err != nil {
		return nil, err
	}

	queueErr := rec.queueCalls(ctx, s)
	g, endErr := s.EndCapture() // even after an error, so that the stream can be used again
	if err := errors.Join(queueErr, endErr); err != nil {
		return nil, err
	}

	return g, nil
}

// queueCalls queues the calls and the copies of their results. s must be in a capture.
func (rec *recording) queueCalls(ctx context.Context, s *symmem.Stream) error {
	for i, call := range rec.calls {
		if err := rec.queueCall(ctx, call, rec.resultCopies[i], s); err != nil {
			return err
		}
	}

	return nil
}

// queueCall queues a call and the copy of its result to resultCopy.
func (rec *recording) queueCall(
	ctx context.Context, call *testCall, resultCopy symmem.Buffer, s *symmem.Stream,
) error {
	dst, err := resultCopy.Memory().Slice(0, call.Recv.Bytes())
	if err != nil {
		return err
	}

	if err := call.useBuffers(dst, s); err != nil {
		return err
	}

	if err := call.launch(ctx); err != nil { // does nothing on ranks outside the group
		return fmt.Errorf("%v: %w", call.describe(), err)
	}

	return s.Copy(dst, call.Recv)
}

// useBuffers overwrites the output of a call, and copies the first byte of its input to dst. Pools
// compare across ranks which buffers a graph uses. Ranks outside the group do not make the call, so
// they must use its buffers here, in the same order as the other ranks.
func (call *testCall) useBuffers(dst symmem.Memory, s *symmem.Stream) error {
	n := min(1, call.Send.Bytes(), dst.Bytes()) // 0 if this rank does not send or receive
	firstByte, err := call.Send.Slice(0, n)
	if err != nil {
		return err
	}

	dst, err = dst.Slice(0, n)
	if err != nil {
		return err
	}

	fillErr := s.Fill(call.Recv, workload.Junk)
	copyErr := s.Copy(dst, firstByte)
	return errors.Join(fillErr, copyErr)
}

// overwriteResults overwrites the results of earlier launches, so that they are not taken for
// results of the next launch. It does not use workload.Junk, with which the graph overwrites the
// outputs. The two cases of missing results can thus be distinguished.
func (rec *recording) overwriteResults(s *symmem.Stream) error {
	const junk = ^byte(workload.Junk)
	var errs []error
	for _, b := range rec.resultCopies {
		errs = append(errs, s.Fill(b.Memory(), junk))
	}

	return errors.Join(errs...)
}

// readResults queues copies of the results to the Got fields of the calls. The fields are valid
// after the next Synchronize of s.
func (rec *recording) readResults(s *symmem.Stream) error {
	for i, call := range rec.calls {
		src, err := rec.resultCopies[i].Memory().Slice(0, call.Recv.Bytes())
		if err != nil {
			return err
		}

		call.Got = make([]byte, src.Bytes())
		if err := s.Copy(symmem.Host(call.Got), src); err != nil {
			return err
		}
	}

	return nil
}

// close closes the graph and frees the buffers.
func (rec *recording) close() error {
	errs := []error{rec.graph.Close()}
	for _, b := range rec.resultCopies {
		errs = append(errs, b.Free())
	}

	for _, b := range rec.liveBuffers {
		errs = append(errs, b.Free())
	}

	return errors.Join(errs...)
}
