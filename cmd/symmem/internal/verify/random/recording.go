package random

import (
	"context"
	"errors"
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// A recording tests calls in a graph. Suppose that it has one call, an AllReduce, with three
// buffers: the input, the output and the copy. The graph contains this work:
//
//  1. Overwrite the output with workload.Junk, and copy the first byte of the input to the copy.
//  2. Make the call.
//  3. Copy the output to the copy.
//
// Step 1 uses the input and the output on all ranks, even on those outside the group, which skip
// the call. Pools compare across ranks which buffers a graph uses.
//
// Because the result is in the copy, the input and the output can be freed before the graph is
// launched. The pool must not reuse their memory until the graph is closed. If it does, the copied
// results are wrong.

// recording holds calls of one group and, after their capture, the graph that makes them.
type recording struct {
	graph graph // set by graphs.captureOn
	// capturedByLibrary is set if another library (environment.library) captured the graph. Its
	// streams must then launch the graph. Pools do not know that the graph uses the buffers, so they
	// must stay allocated until the graph is closed.
	capturedByLibrary bool
	group             int // index of the group in groups.all
	calls             []*testCall
	resultCopies      []symmem.Buffer // resultCopies[i] is the copy for calls[i]
	liveBuffers       []symmem.Buffer // inputs and outputs that have not been freed
}

// graph is a *symmem.Graph or a *program.LibraryGraph.
type graph interface {
	Launch(s *symmem.Stream) error
	Close() error
}

// addCall adds a call. It allocates the three buffers from p, each with the given size, and queues
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

// queueCalls queues the work of the graph on s, which must be in a capture.
func (rec *recording) queueCalls(ctx context.Context, s *symmem.Stream) error {
	for i, call := range rec.calls {
		if err := queueCall(ctx, call, rec.resultCopies[i], s); err != nil {
			return err
		}
	}

	return nil
}

// queueCall queues the three steps of a call.
func queueCall(
	ctx context.Context, call *testCall, resultCopy symmem.Buffer, s *symmem.Stream,
) error {
	dst, err := resultCopy.Memory().Slice(0, call.Recv.Bytes())
	if err != nil {
		return err
	}

	if err := useBuffers(call, dst, s); err != nil {
		return err
	}

	if err := call.launch(ctx); err != nil { // does nothing on ranks outside the group
		return fmt.Errorf("%v: %w", call.describe(), err)
	}

	return s.Copy(dst, call.Recv)
}

// useBuffers overwrites the output of a call, and copies the first byte of the input to dst. If the
// input or dst is empty on this rank, it copies nothing.
func useBuffers(call *testCall, dst symmem.Memory, s *symmem.Stream) error {
	n := min(1, call.Send.Bytes(), dst.Bytes())
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

// overwriteResults overwrites the copies, so that the results of an earlier launch are not taken
// for those of the next one.
//
// It uses another value than workload.Junk, which the copies contain if the graph runs without
// writing the output. A reader can thus distinguish a graph that did not run.
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

// close closes the graph, and frees the copies and the remaining inputs and outputs.
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
