package driver

import "testing"

func TestEveryReductionHasItsOwnRow(t *testing.T) {
	names, numbers, kernels := map[string]bool{}, map[Code]bool{}, map[Code]bool{}
	for op := range ReduceOp(ReduceOps) {
		row := &reductions[op]
		if row.name == "" || names[row.name] || row.nccl != 0 && numbers[row.nccl] ||
			row.kernel != 0 && !row.isAverage && kernels[row.kernel] {
			t.Errorf("reduction %d has row %+v, want a row with a name and unique codes", op, row)
		}

		if got, want := op.Accepts(Int32), !op.HasFactor(); got != want {
			t.Errorf("%v.Accepts(Int32) = %v, want %v", op, got, want)
		}

		names[row.name], numbers[row.nccl], kernels[row.kernel] = true, true, true
		if parsed, err := ParseReduceOp(op.String()); err != nil || parsed != op {
			t.Errorf("ParseReduceOp(%q) = %v, %v; want %v", op, parsed, err, op)
		}

		if logical, ok := row.logical.Number(); ok && !ReduceOp(logical).Accepts(Uint8) {
			t.Errorf("%v of booleans uses %v, which does not accept bytes", op, ReduceOp(logical))
		}
	}

	none := ReduceOp(ReduceOps)
	if none.String() != "redop(?)" || none.Accepts(Int32) || none.NCCL() != 0 {
		t.Errorf("a reduction without a row has name %q, accepts Int32: %v, has NCCL code %d", none,
			none.Accepts(Int32), none.NCCL())
	}

	if _, err := ParseReduceOp("bnot"); err == nil {
		t.Error("ParseReduceOp accepted an unknown name")
	}
}

func TestFactorHasTypeOfElements(t *testing.T) {
	for dataType, want := range map[DataType]uint64{
		Float64: 0x3FD5555555555555, Float32: 0x3EAAAAAB, Float16: 0x3555, BFloat16: 0x3EAB,
	} {
		call := Call{DataType: dataType, Factor: 1.0 / 3}
		if got := call.FactorBits(); got != want {
			t.Errorf("FactorBits of %v = %#x; want %#x", dataType, got, want)
		}
	}
}
