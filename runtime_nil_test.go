package symmem_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"symmem"
)

// excludedMethods end the use of their receivers, except for Pool.Map, which is a test helper.
var excludedMethods = []string{"Close", "Abort", "End", "Forget", "Free", "Map"}

func TestNilArgumentsDoNotPanic(t *testing.T) {
	options := symmem.Options{Timeout: 2 * time.Second} // for calls that wait
	runRanks(t, 1, options, func(r *rank) {
		p := r.pool()
		b := r.window(p, 4096)
		s := r.stream()
		e, err := r.NewEvent()
		r.ok(err)
		r.ok(s.BeginCapture())
		graph, err := s.EndCapture()
		r.ok(err)
		scope := p.Begin(r.World())
		for _, receiver := range []any{
			r.Runtime, r.World(), p, &b, s, e, graph, scope, b.Memory(), r.Interop(),
		} {
			value := reflect.ValueOf(receiver)
			for i := range value.NumMethod() {
				method := value.Type().Method(i)
				if slices.Contains(excludedMethods, method.Name) {
					continue
				}

				name := fmt.Sprintf("%v.%s", value.Type(), method.Name)
				callWithZeros(t, name, value.Method(i))
			}
		}

		// Wait for the work that the calls have queued. It may fail.
		_ = r.DefaultStream().Synchronize(r.ctx)
		_ = s.Synchronize(r.ctx)
		callWithZeros(t, "Scope.End", reflect.ValueOf(scope.End))
	})
}

// callWithZeros passes zero values to f and ignores its results. It fails the test if f panics.
func callWithZeros(t *testing.T, name string, f reflect.Value) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%s panics: %v", name, p)
		}
	}()
	args := make([]reflect.Value, f.Type().NumIn())
	for i := range args {
		args[i] = reflect.Zero(f.Type().In(i))
	}

	if f.Type().IsVariadic() {
		args = args[:len(args)-1]
	}

	f.Call(args)
}

// A nil context never ends, like context.Background.
func TestNilContext(t *testing.T) {
	var nilCtx context.Context
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		const count, value = 4, 1 // arbitrary
		m := r.alloc(r.pool(), 4096).Memory()
		r.ok(r.World().Check(nilCtx))
		r.ok(r.World().AllReduce(nilCtx, m, m, count, symmem.Float32, symmem.Sum, nil))
		r.ok(r.World().Agree(nilCtx, "a value", value))
		r.ok(r.DefaultStream().Synchronize(nilCtx))
	})
}

func TestNilFunctionIsRejected(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		s := r.stream()
		r.wantErr(s.Host(nil), symmem.ErrInvalid)
		r.ok(s.Synchronize(r.ctx))
	})
}
