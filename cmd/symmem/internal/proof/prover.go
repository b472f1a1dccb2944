package proof

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

// FlagUsage is the help text of the flag --prove.
const FlagUsage = "print which kernels NCCL chose, as its log shows"

// Prover implements the flag --prove, which prints the kernels that NCCL used for each call. Its
// methods do nothing unless Enabled is set. A Prover is not safe for concurrent use.
type Prover struct {
	Enabled  bool
	recorder *Recorder
	calls    []Collective
}

// Start makes NCCL log its choices. It must be called before symmem.Open.
func (p *Prover) Start() (err error) {
	if p.Enabled {
		p.recorder, err = Start()
	}

	return err
}

// AddCall adds a call to print. See CollectiveOf for the arguments.
func (p *Prover) AddCall(operation string, count int64, elementBytes int) {
	if c := CollectiveOf(operation, count, elementBytes); p.Enabled && !slices.Contains(p.calls, c) {
		p.calls = append(p.calls, c)
	}
}

// Write prints a line with a prefix for each call. Only rank 0 has a log.
func (p *Prover) Write(w io.Writer, prefix string) error {
	if p.recorder == nil {
		return nil
	}

	if problem := p.recorder.Problem(); problem != "" {
		_, err := fmt.Fprintf(w, "%scannot determine which kernels ran: %s\n", prefix, problem)
		if err != nil {
			return fmt.Errorf("printing which kernels ran: %w", err)
		}

		return nil
	}

	log, err := p.recorder.Read()
	if err != nil {
		return err
	}

	for _, c := range p.calls {
		if _, err := fmt.Fprintf(w, "%s%v\n", prefix, log.KernelsOf(c)); err != nil {
			return fmt.Errorf("printing which kernels ran: %w", err)
		}
	}

	return nil
}

// Close closes the recorder and joins its error to *err.
func (p *Prover) Close(err *error) {
	if p.recorder != nil {
		*err = errors.Join(*err, p.recorder.Close())
		p.recorder = nil
	}
}
