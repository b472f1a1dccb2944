package nccl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/p2p"
	"symmem/internal/control"
	"symmem/internal/nccl"
)

// suspender releases a group's memory until the group is resumed.
type suspender struct {
	gpu      *gpu.GPU
	cfg      *driver.GroupConfig
	plane    control.Plane
	mu       *groupLock
	comm     *ncclComm
	exchange *direct.Exchange
	messages p2p.Suspender
}

// PrepareSuspend returns ErrBusy if a message of this rank has not been delivered, or if abandoned
// work may still be running.
func (s *suspender) PrepareSuspend() error {
	if s.gpu.KeepsMemory() {
		return fmt.Errorf("a kernel of a closed stream or group is still running: %w", driver.ErrBusy)
	}
	return s.messages.PrepareSuspend()
}

// Suspend releases the exchange memory and the staging memory of messages. If NCCL supports it,
// Suspend also releases the memory of NCCL's communicator, which Released does not include.
func (s *suspender) Suspend(ctx context.Context) (driver.Suspension, error) {
	ctx, cancel := control.Bounded(ctx, s.cfg.Timeout.Get())
	defer cancel()
	exchanged, err := s.exchange.Suspend()
	staged, stagingErr := s.messages.Suspend()
	released := driver.Suspension{Released: exchanged + staged}
	err = errors.Join(err, stagingErr)
	if !s.comm.library.Suspends() {
		_, text := s.comm.library.Version()
		released.Kept = append(released.Kept, fmt.Sprintf("memory of the communicator of NCCL %s, which "+
			"cannot release it (ncclCommSuspend needs %s)", text, nccl.VersionText(nccl.VersionSuspend)))
	} else if err == nil {
		err = s.callNCCL(ctx, s.comm.suspend)
	}
	if err != nil {
		return released, s.plane.Fail(fmt.Errorf("suspending group %s: %w", s.cfg.Name(), err))
	}
	return released, nil
}

// callNCCL makes a call to NCCL with the group's lock held, because NCCL permits only one thread at
// a time. NCCL may wait for other ranks without a deadline, so callNCCL fails the group when ctx is
// done, and the teardown then makes the call return.
func (s *suspender) callNCCL(ctx context.Context, call func() error) error {
	begin := time.Now()
	stop := context.AfterFunc(ctx, func() {
		_ = s.plane.Fail(waitError(ctx, "suspending or resuming NCCL in group "+s.cfg.Name(), begin))
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.plane.Cause(); err != nil {
		return err
	}
	return call()
}

// resumption is the message that a rank sends to the other ranks when a group resumes.
type resumption struct {
	// Refusal is the reason why the rank cannot resume, or empty.
	Refusal string `json:"refusal,omitempty"`
	// Exchange describes the rank's exchange memory, so that the other ranks can map it.
	Exchange []byte `json:"exchange,omitempty"`
}

// Resume allocates this rank's memory and maps the peers' memory, all at the old addresses.
func (s *suspender) Resume(ctx context.Context) error {
	ctx, cancel := control.Bounded(ctx, s.cfg.Timeout.Get())
	defer cancel()
	exchange, err := s.allocate()
	defer exchange.Withdraw()
	messages, refusal, agreeErr := s.exchangeResumptions(ctx, exchange, err)
	if agreeErr != nil {
		return agreeErr
	}
	if refusal != nil {
		if err == nil {
			err = errors.Join(exchange.Discard(), s.messages.Deallocate())
		} else {
			err = nil
		}
		return errors.Join(refusal, err)
	}
	err = s.mapPeers(ctx, exchange, messages)
	if err == nil && s.comm.library.Suspends() {
		err = s.callNCCL(ctx, s.comm.resume)
	}
	if err == nil { // wait, because exports must last until all ranks have mapped the memory
		_, err = s.plane.Exchange(ctx, driver.LaneControl, nil)
	}
	if err != nil {
		return s.plane.Fail(fmt.Errorf("resuming group %s: %w", s.cfg.Name(), err))
	}
	return nil
}

// mapPeers maps the memory of the peers. It holds the lock so that the teardown cannot free the
// addresses in the meantime, and it does nothing after a fault, because they may then be free.
func (s *suspender) mapPeers(
	ctx context.Context, exchange *direct.Allocation, messages [][]byte,
) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.plane.Cause(); err != nil {
		return err
	}
	if err := exchange.MapPeers(ctx, messages); err != nil {
		return err
	}
	return s.messages.MapAgain(ctx)
}

// allocate allocates this rank's memory. If it fails, nothing stays allocated.
func (s *suspender) allocate() (*direct.Allocation, error) {
	if err := s.messages.Allocate(); err != nil {
		return nil, err
	}
	exchange, err := s.exchange.Allocate()
	if err != nil {
		err = errors.Join(err, s.messages.Deallocate())
	}
	return exchange, err
}

// exchangeResumptions sends this rank's resumption to the other ranks. It returns the Exchange
// field of every rank's resumption, or the refusal of the first rank that cannot resume.
func (s *suspender) exchangeResumptions(
	ctx context.Context, exchange *direct.Allocation, allocateErr error,
) (messages [][]byte, refusal, err error) {
	own := resumption{Exchange: exchange.Message()}
	if allocateErr != nil {
		own.Refusal = allocateErr.Error()
	}
	encoded, err := json.Marshal(own)
	if err != nil {
		return nil, nil, err
	}
	all, err := s.plane.Exchange(ctx, driver.LaneControl, encoded)
	if err != nil {
		return nil, nil, err
	}
	for r, encoded := range all {
		var message resumption
		if err := json.Unmarshal(encoded, &message); err != nil {
			return nil, nil, fmt.Errorf("decoding the message of rank %d: %w", s.cfg.Ranks[r], err)
		}
		if message.Refusal != "" && refusal == nil {
			refusal = fmt.Errorf("rank %d: %s: %w", s.cfg.Ranks[r], control.Printable(message.Refusal),
				driver.ErrOutOfMemory)
		}
		messages = append(messages, message.Exchange)
	}
	return messages, refusal, nil
}
