package proof

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

// Usage describes the flag that enables a Prover.
const Usage = "print which kernels NCCL chose, from its own log"

// Prover implements the flag --prove of commands. It records calls, and prints for each call which
// kernels NCCL used. If On is false, all methods do nothing. If On is true, call Start first,
// Called for each call, and then Write and Close. A Prover is not safe for concurrent use.
type Prover struct {
	// On is the value of the flag.
	On       bool
	recorder *Recorder
	calls    []Collective
}

// Start makes NCCL log its choices. It must be called before symmem.Open. On the host backend, the
// log stays empty.
func (p *Prover) Start() (err error) {
	if p.On {
		p.recorder, err = Start()
	}
	return err
}

// Called records a call unless it has already been recorded. See CollectiveOf for the arguments.
func (p *Prover) Called(operation string, count int64, elementBytes int) {
	if c := CollectiveOf(operation, count, elementBytes); p.On && !slices.Contains(p.calls, c) {
		p.calls = append(p.calls, c)
	}
}

// Write prints a line, with a prefix, for each recorded call. Only rank 0 may call it, because the
// other ranks have no log.
func (p *Prover) Write(w io.Writer, prefix string) error {
	if p.recorder == nil {
		return nil
	}
	if problem := p.recorder.Problem(); problem != "" {
		_, err := fmt.Fprintf(w, "%scannot determine which kernels ran: %s\n", prefix, problem)
		if err != nil {
			return fmt.Errorf("writing which kernels ran: %w", err)
		}
		return nil
	}
	log, err := p.recorder.Read()
	if err != nil {
		return err
	}
	for _, c := range p.calls {
		if _, err := fmt.Fprintf(w, "%s%v\n", prefix, log.Prove(c)); err != nil {
			return fmt.Errorf("writing which kernels ran: %w", err)
		}
	}
	return nil
}

// Close closes the recorder and joins any error to *err.
func (p *Prover) Close(err *error) {
	if p.recorder != nil {
		*err = errors.Join(*err, p.recorder.Close())
		p.recorder = nil
	}
}
