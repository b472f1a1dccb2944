package symmem_test

const victimVariable = "SYMMEM_TEST_VICTIM"

func beRank() int { return 0 }
