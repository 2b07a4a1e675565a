package faults

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// rows maps each row of the fault matrix (RELIABILITY 3) to the tests that show it, as
// folder.Test. A row without one says whose it is.
var rows = map[int]struct {
	fault string
	tests []string
	open  string
}{
	1:  {"kill -9 before the plan line", []string{"test/torture.TestKilled"}, ""},
	2:  {"kill -9 inside it", []string{"pkg/journal.TestTornTail"}, ""},
	3:  {"kill -9 after the line, before the reply", []string{"test/torture.TestKilled", "test/integration.TestCase_PX_08_PlanOutlivesItsProcess"}, ""},
	4:  {"kill -9 before the claim", []string{"test/torture.TestKilled"}, ""},
	5:  {"kill -9 after the claim, before it is sent", []string{"test/torture.TestKilled", "pkg/engine.TestJudge", "pkg/journal.TestUnsettled"}, ""},
	6:  {"kill -9 after it is sent, before the response", []string{"test/torture.TestKilled", "test/integration.TestCase_PX_08"}, ""},
	7:  {"kill -9 after the response, before the outcome", []string{"test/torture.TestKilled", "pkg/engine.TestReconcile"}, ""},
	8:  {"kill -9 after the outcome, before the reply", []string{"test/torture.TestKilled", "pkg/journal.TestResultIsRemembered"}, ""},
	9:  {"kill -9 in the middle of a line", []string{"pkg/journal.TestTornTail", "pkg/journal.TestTailKinds", "test/torture.TestTorture"}, ""},
	10: {"kill -9 during rotation, checkpoint, key creation", []string{"pkg/journal.TestRotationIsCutOff", "pkg/journal.TestRotationFails", "pkg/journal.TestKeysFirstUseRace", "pkg/journal.TestKeyRewriteIsCutOff"}, ""},
	11: {"ENOSPC on plan line, intent, outcome", []string{
		"pkg/journal.TestNoRoom", "pkg/journal.TestReserve", "pkg/journal.TestReserveIsReal", "pkg/journal.TestFileIsFull",
		"test/integration.TestCase_PX_10", "test/integration.TestJournalFailsBeforeClaim", "test/integration.TestOutcomeWithoutARecord",
	}, ""},
	12: {"EIO on write, fsync", []string{"pkg/journal.TestWriteFaults", "pkg/journal.TestRepairFaults"}, ""},
	13: {"read-only disk, no permission, disk yanked", []string{"test/faults.TestFault_13_DiskGone", "test/faults.TestFault_13_14_RefusesToStart"}, ""},
	14: {"/dev/full, link, pipe, folder as the audit file", []string{"test/faults.TestFault_13_14_RefusesToStart", "pkg/journal.TestOpenRefuses", "pkg/journal.TestPipe"}, ""},
	15: {"audit blocked", []string{"test/faults.TestFault_15_JournalBlocked", "pkg/journal.TestLockIsHeld"}, ""},
	16: {"response dropped after the commit", []string{"test/integration.TestCase_CL_06", "test/torture.TestTorture"}, ""},
	17: {"request dropped before the server", []string{"test/integration.TestCase_CL_06", "test/torture.TestTorture", "pkg/kube.TestSendToNobody"}, ""},
	18: {"504, and committed late", []string{"test/torture.TestTorture", "test/torture.TestSimulated", "test/faults.TestFault_32_StepWhileUnknown"}, ""},
	19: {"reset in the body, GOAWAY", []string{"test/torture.TestTorture", "pkg/kube.TestSendOnce"}, ""},
	20: {"429, 503, 504 with Retry-After", []string{"test/integration.TestCase_CL_06", "pkg/kube.TestRetryAfter", "pkg/kube.TestSendOnce"}, ""},
	21: {"500 without a body, storm of 409, 422", []string{
		"test/faults.TestFault_21_ConflictWithoutEnd", "test/faults.TestFault_21_AnswersWithoutABody", "test/integration.TestConflictStorm", "pkg/kube.TestClassify",
	}, ""},
	22: {"API server killed or paused, etcd killed", []string{"test/faults.TestFault_22_ControlPlaneDies"}, ""},
	23: {"client cancels or is gone, end of input, SIGTERM", []string{"test/integration.TestClientVanished", "test/integration.TestCase_MC_02_MidWrite", "pkg/server.TestGuardGrace"}, ""},
	24: {"one phrase a hundred times at once", []string{"test/integration.TestHundredCalls", "test/integration.TestUnknownForAll"}, ""},
	25: {"two processes, one state folder, one phrase", []string{"test/integration.TestTwoProcesses", "test/integration.TestSeesAnothersEffect", "pkg/journal.TestOneClaim"}, ""},
	26: {"two replicas, one phrase", []string{
		"test/replicas.TestHundredCalls", "test/replicas.TestClaimLost", "test/replicas.TestClaimOfAnother", "test/replicas.TestFaultyLedger", "test/replicas.TestKilled", "test/replicas.TestSettledUnasked", "test/replicas.TestTakenForDead",
	}, ""},
	27: {"owner paused after its claim", []string{"test/faults.TestFault_27_PausedAfterTheClaim", "test/replicas.TestPaused"}, ""},
	28: {"ledger object deleted or edited", []string{"test/replicas.TestTampered", "test/replicas.TestDeletedUnderWay", "test/replicas.TestBudgetTampered", "test/replicas.TestTransitions", "test/replicas.TestForbidden"}, ""},
	29: {"journal changed on the disk", []string{
		"pkg/journal.TestTampering", "pkg/journal.TestVerifyTampering", "pkg/journal.TestCheckpointTampering", "pkg/journal.TestOpenAgainstCheckpoint",
		"pkg/journal.TestSegmentsAreChanged", "pkg/journal.TestFileChangesUnderLiveProcess", "test/integration.TestRecordDamaged",
	}, ""},
	30: {"key missing, wrong, readable by all, rotated, swapped", []string{
		"pkg/journal.TestReadKeysRefuses", "pkg/journal.TestLoadKeysRefuses", "pkg/journal.TestKeyIsLost", "pkg/journal.TestVerifyKeyEpochs", "pkg/journal.TestRotateKeys", "pkg/journal.TestSwappedKeys", "pkg/engine.TestKeyUnknown",
	}, ""},
	31: {"phrase changed in any way", []string{
		"test/faults.TestFault_31_EveryByte", "test/integration.TestCase_PX_11", "test/integration.TestCase_PX_16_AnotherCluster", "test/integration.TestCase_PX_08_PlanOutlivesItsProcess",
		"pkg/plan.TestConfirms", "pkg/plan.TestSigned", "pkg/plan.FuzzPhrase",
	}, ""},
	32: {"clock set, stepped during the claim, asleep", []string{
		"test/faults.TestFault_32_Clock", "test/faults.TestFault_32_StepDuringTheClaim", "test/faults.TestFault_32_StepWhileUnknown", "pkg/engine.TestClock", "pkg/journal.TestTimeNeverGoesBack", "pkg/journal.TestFuture", "pkg/kube.TestSleep",
	}, ""},
	33: {"drift", []string{"test/integration.TestDriftOfAWorkload", "test/integration.TestDriftOfOtherKinds", "test/integration.TestDriftOfAPod", "test/integration.TestDriftOfANode", "test/cluster.TestDrift"}, ""},
	34: {"deleted and made again", []string{"test/integration.TestDriftOfAWorkload", "test/integration.TestDriftOfAPod", "test/integration.TestDriftOfANode", "test/integration.TestCase_CL_11"}, ""},
	35: {"there and back", []string{"test/integration.TestDriftOfAWorkload", "test/integration.TestDriftOfANode"}, ""},
	36: {"object or namespace terminating", []string{"test/integration.TestDriftOfAWorkload", "test/integration.TestDriftOfAPod", "test/integration.TestDriftOfANode"}, ""},
	37: {"permission revoked, token expired", []string{"test/faults.TestFault_37_PermissionRevoked", "test/faults.TestFault_37_RevokedUnderTheWrite"}, ""},
	38: {"webhooks", []string{"test/faults.TestFault_38_WebhookAtThePlan", "test/faults.TestFault_38_WebhookAtTheExecution", "test/faults.TestFault_38_SideEffects"}, ""},
	39: {"quota or policy changed", []string{"test/faults.TestFault_39_RefusedByNow"}, ""},
	40: {"disruption budgets", []string{"test/faults.TestFault_40_BudgetSaysNo", "test/faults.TestFault_40_AnotherPodOfTheName", "test/cluster.TestDrainUnderABudget", "pkg/kube.TestBlockedByBudget"}, ""},
	41: {"informer not synced, watch cut, stale", []string{
		"test/faults.TestFault_41_NoWatch", "test/faults.TestFault_41_TextNamesTheSource", "pkg/kube.TestCutWatch", "pkg/kube.TestNothingIsReadFromAHeldWatch", "pkg/kube.TestQuietKind", "pkg/kube.TestUnreachable", "pkg/blast.TestAgrees",
	}, ""},
	42: {"many field managers, overwritten at once", []string{"test/faults.TestFault_42_OtherManagers", "test/torture.TestOverridden", "pkg/engine.TestJudge", "test/cluster.TestVerdicts"}, ""},
	43: {"policy changed", []string{"test/faults.TestFault_43_PolicyFileChanged", "test/integration.TestScopeAsOfNow"}, ""},
	44: {"rates", []string{"test/integration.TestCase_PX_15", "test/integration.TestPlanRate", "test/integration.TestGuessesAreLimited", "pkg/gate.TestRate"}, ""},
	45: {"huge and evil inputs", []string{
		"pkg/action.TestCase_PX_13", "pkg/action.TestCase_PX_14", "pkg/action.TestCase_PX_17", "pkg/action.TestManyFaults", "pkg/action.FuzzDecode",
		"pkg/server.TestGuardLineLimit", "pkg/server.TestGuardLineMemory", "pkg/server.FuzzGuardLine", "pkg/journal.TestLongestLine", "pkg/journal.FuzzLine",
	}, ""},
	46: {"secrets as canaries", []string{"test/faults.TestFault_46_47_Canaries", "test/integration.TestNothingSecretNothingHostile", "pkg/kube.TestCase_RD_12"}, ""},
	47: {"instructions as canaries", []string{"test/faults.TestFault_46_47_Canaries", "test/integration.TestNothingSecretNothingHostile", "pkg/plan.TestUntrustedEveryRune", "pkg/plan.FuzzUntrusted"}, ""},
	48: {"HTTP", nil, inTheCluster},
	49: {"after the memory, after expiry, an old record", []string{
		"test/faults.TestFault_49_Memory", "test/faults.TestFault_49_OldRecord", "test/integration.TestCase_PX_06", "pkg/journal.TestForget", "pkg/journal.TestNewerFormat", "pkg/plan.TestSign",
	}, ""},
	50: {"power loss", []string{"pkg/journal.TestPowerLoss", "pkg/journal.TestTornTail", "pkg/journal.TestTailKinds"}, ""},
}

// inTheCluster is whose the rows are that are open here.
const inTheCluster = "HTTP comes with the server in the cluster"

// transitions maps each row of the state machine (RELIABILITY 2.4) to its tests.
var transitions = map[int][]string{
	1:  {"test/integration.TestPlansWriteNothing", "test/integration.TestOneOutcomePerCall"},
	2:  {"test/integration.TestRefusedWriteNothing", "test/faults.TestFault_38_WebhookAtThePlan"},
	3:  {"test/integration.TestCase_PX_11", "test/integration.TestCase_PX_05", "test/integration.TestCase_PX_16_AnotherCluster", "test/faults.TestFault_31_EveryByte"},
	4:  {"test/integration.TestCase_PX_06", "test/integration.TestCase_PX_15"},
	5:  {"test/integration.TestHundredCalls", "test/integration.TestTwoProcesses", "test/cluster.TestCase_MC_10"},
	6:  {"test/integration.TestCase_PX_06", "test/faults.TestFault_32_Clock"},
	7:  {"test/integration.TestDriftOfAWorkload", "test/faults.TestFault_39_RefusedByNow", "test/faults.TestFault_38_WebhookAtTheExecution"},
	8:  {"test/integration.TestOneOutcomePerCall", "test/faults.TestFault_21_ConflictWithoutEnd"},
	9:  {"test/integration.TestCase_PX_10", "test/integration.TestJournalFailsBeforeClaim", "test/faults.TestFault_13_DiskGone", "test/faults.TestFault_15_JournalBlocked"},
	10: {"test/integration.TestClientVanished", "pkg/kube.TestSendOnce", "pkg/kube.TestFenceWhatLeaves"},
	11: {"test/integration.TestCase_PX_10_OneLine", "test/integration.TestEveryAction"},
	12: {"test/integration.TestCase_CL_11", "test/faults.TestFault_37_RevokedUnderTheWrite"},
	13: {"test/integration.TestConflictStorm", "test/faults.TestFault_21_ConflictWithoutEnd", "test/cluster.TestDrainUnderABudget"},
	14: {"test/integration.TestCase_CL_06", "test/faults.TestFault_21_AnswersWithoutABody", "test/faults.TestFault_22_ControlPlaneDies"},
	15: {"pkg/engine.TestJudge", "pkg/engine.TestReconcile", "test/integration.TestCase_PX_08", "test/faults.TestFault_42_OtherManagers"},
	16: {"test/cluster.TestVerdicts", "test/cluster.TestScaleConverges"},
	17: {"test/integration.TestOutcomeWithoutARecord", "test/faults.TestFault_15_JournalBlocked", "test/faults.TestFault_32_StepDuringTheClaim"},
}

// TestMap: every row has a test or says whose it is, each test that is named is there, and
// no test of a row here is left out of the map.
func TestMap(t *testing.T) {
	there := tests(t)
	check := func(what string, names []string) {
		for _, name := range names {
			if !there[name] {
				t.Errorf("%s: there is no test %s", what, name)
			}
		}
	}
	for n := 1; n <= 50; n++ {
		row, ok := rows[n]
		if !ok || len(row.tests) == 0 && row.open == "" {
			t.Errorf("row %d has no test, and does not say whose it is", n)
		}
		check("row "+strconv.Itoa(n)+", "+row.fault, row.tests)
	}
	for n := 1; n <= 17; n++ {
		if len(transitions[n]) == 0 {
			t.Errorf("row %d of the state machine has no test", n)
		}
		check("row "+strconv.Itoa(n)+" of the state machine", transitions[n])
	}
	for name := range there {
		numbers, ok := strings.CutPrefix(name, "test/faults.TestFault_")
		for _, part := range strings.Split(numbers, "_") {
			n, err := strconv.Atoi(part)
			if ok && err == nil && !slices.Contains(rows[n].tests, name) {
				t.Errorf("%s is not in row %d of the map", name, n)
			}
		}
	}
}

// tests are the tests and fuzz targets of the module, as folder.Test.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	there := map[string]bool{}
	const root = "../.."
	for _, depth := range []string{"*", "*/*", "*/*/*"} {
		files, err := filepath.Glob(filepath.Join(root, depth, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			folder, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && (strings.HasPrefix(fn.Name.Name, "Test") || strings.HasPrefix(fn.Name.Name, "Fuzz")) {
					there[filepath.ToSlash(folder)+"."+fn.Name.Name] = true
				}
			}
		}
	}
	return there
}
