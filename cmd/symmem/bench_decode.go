package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"symmem/internal/bench"
	"symmem/internal/rendezvous"
)

const benchDecodeLong = "" +
	`decode measures one layer of a model that answers a number of sequences at once, split
over GPUs as tensor parallelism does it: a product of [batch, hidden/ranks] and [hidden/ranks,
hidden] in bfloat16, then an all-reduce of the [batch, hidden] result. --layers of them are
captured into a graph, whose replays are timed; a time is that of one layer on the slowest rank.

The product is that of cuBLAS, whose kernels overlap with nothing, or, with --product plain, a
kernel of our own for up to 8 sequences. It loads its first weights before the all-reduce ahead of
it has ended, if that lets it begin: kernels of the direct path do, NCCL's do not. All paths have
the same product, launched alike.

The path that the tuning table chooses runs in turns with the plain, the window and the direct path,
as far as the group has them, each in a graph of its own over the same buffers. The gain is over
plain. Every element of every path's result is checked first. The bar is 2 percent over plain; for
one sequence on 4 GPUs auto is to be 25 percent faster, or 60 percent where there is a direct path.

It needs GPUs and, but for --product plain, cuBLAS, which comes with PyTorch or the CUDA toolkit,
or is named by SYMMEM_CUBLAS. It starts the ranks itself, or, started by a launcher, is one of
them.`

const benchDecodeExample = `  symmem bench decode --ranks 4
  symmem bench decode --ranks 2 --batch-sizes 1,8,64 --json
  symmem bench decode --ranks 4 --product plain --batch-sizes 1,2,4,8
  SYMMEM_TUNING=table.json symmem bench decode --ranks 4 --enforce`

// decodeFlags are the flags of bench decode as they are given.
type decodeFlags struct {
	worldFlags
	product string
	config  bench.Decode
}

func newBenchDecodeCommand(shared *benchFlags) *cobra.Command {
	f := &decodeFlags{worldFlags: worldFlags{benchFlags: shared}}
	cmd := &cobra.Command{
		Use:     "decode",
		Short:   "Measure decode layers: matrix product and all-reduce",
		Long:    benchDecodeLong,
		Example: benchDecodeExample,
		Args:    cobra.NoArgs,
	}
	cmd.RunE = f.runs(f.parse, f.run)
	c, flags := &f.config, cmd.Flags()
	flags.IntVar(&c.Hidden, "hidden", 8192, "width of the model, a multiple of 8 for each rank")
	flags.IntVar(&c.Layers, "layers", 20, "layers that are captured into a graph")
	flags.IntSliceVar(&c.Sequences, "batch-sizes", nil,
		"sequences that are answered at once (default powers of 2 to 256, for plain to 8)")
	flags.StringVar(&f.product, "product", string(bench.CuBLAS),
		"whose the matrix product is: cublas, or plain, our own, for up to 8 sequences")
	flags.StringVar(&c.Tuning, "tuning", "",
		"table that chooses paths: a file, or built-in (default as Open finds it)")
	f.register(flags, &c.Timeout)
	return cmd
}

// sequencesOf are the batches that are measured if none are given.
func sequencesOf(product bench.Product) (all []int) {
	for n := 1; n <= 256 && product.Takes(n) == nil; n *= 2 {
		all = append(all, n)
	}
	return all
}

// maxSequences bounds the batch, and with it the buffers.
const maxSequences = 1 << 16

// parse checks all flags before anything starts.
func (f *decodeFlags) parse() error {
	c := &f.config
	if err := f.settle(&c.Plan, &c.Backend); err != nil {
		return err
	}
	var err error
	if c.Product, err = bench.ParseProduct(f.product); err != nil {
		return err
	}
	if len(c.Sequences) == 0 {
		c.Sequences = sequencesOf(c.Product)
	}
	if err := positive("batch-sizes", c.Sequences); err != nil {
		return err
	}
	for _, n := range c.Sequences {
		if n > maxSequences {
			return fmt.Errorf("batch-sizes has %d, but may have %d at most", n, maxSequences)
		}
		if err := c.Product.Takes(n); err != nil {
			return fmt.Errorf("batch-sizes: %w", err)
		}
	}
	if c.Layers < 1 || c.Layers > maxGraphOps {
		return fmt.Errorf("layers is %d, but must be from 1 to %d", c.Layers, maxGraphOps)
	}
	return nil
}

func (f *decodeFlags) run(cmd *cobra.Command, w rendezvous.World) error {
	// Rows of 16 bytes are what the tensor cores of a GPU want.
	if c := &f.config; c.Hidden < 1 || c.Hidden%(8*w.Size) != 0 {
		return fmt.Errorf("hidden is %d, but must be a multiple of 8 for each of %d ranks",
			c.Hidden, w.Size)
	}
	return f.play(cmd, w, func() (*bench.Report, error) { return f.config.Run(cmd.Context()) })
}
