/* Times a collective of MPI, of floats, out of place and in place, for the sizes and iterations that the arguments give:
   COLLECTIVE, then SIZE ITERATIONS WARMUP, again and again. A size is the bytes of the larger of what a rank gives and gets. Prints how many
   ranks there are, then a line for each size: bytes, then the mean time of a call in microseconds both ways, averaged over the ranks. Where
   there is no such call in place, it is timed out of place twice. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static const char *collective;

static int is(const char *name) { return strcmp(collective, name) == 0; }

/* Elements of one rank's part, where there are parts. */
static int part(int count) { return count / ranks; }

static void call(float *send, float *receive, int count, int in_place) {
    const MPI_Comm world = MPI_COMM_WORLD;
    int n = part(count);
    void *own = in_place ? MPI_IN_PLACE : send;
    void *at_root = in_place && rank == 0 ? MPI_IN_PLACE : send;
    if (is("all-reduce"))
        MPI_Allreduce(own, receive, count, MPI_FLOAT, MPI_SUM, world);
    else if (is("broadcast"))
        MPI_Bcast(receive, count, MPI_FLOAT, 0, world);
    else if (is("reduce"))
        MPI_Reduce(at_root, receive, count, MPI_FLOAT, MPI_SUM, 0, world);
    else if (is("all-gather"))
        MPI_Allgather(own, n, MPI_FLOAT, receive, n, MPI_FLOAT, world);
    else if (is("reduce-scatter"))
        MPI_Reduce_scatter_block(own, receive, n, MPI_FLOAT, MPI_SUM, world);
    else if (is("alltoall"))
        MPI_Alltoall(send, n, MPI_FLOAT, receive, n, MPI_FLOAT, world);
    else if (is("gather"))
        MPI_Gather(at_root, n, MPI_FLOAT, receive, n, MPI_FLOAT, 0, world);
    else if (is("scatter"))
        MPI_Scatter(send, n, MPI_FLOAT, in_place && rank == 0 ? MPI_IN_PLACE : receive, n, MPI_FLOAT, 0, world);
    else
        MPI_Sendrecv(send, count, MPI_FLOAT, (rank + 1) % ranks, 0, receive, count, MPI_FLOAT, (rank + ranks - 1) % ranks, 0,
                     world, MPI_STATUS_IGNORE);
}

static double time_calls(float *send, float *receive, int count, int in_place, long warmup, long iterations) {
    for (long i = 0; i < warmup; i++)
        call(send, receive, count, in_place);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long i = 0; i < iterations; i++)
        call(send, receive, count, in_place);
    double own = (MPI_Wtime() - start) / (double)iterations * 1e6, sum = 0;
    MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum / ranks;
}

/* What the first element of the results must be, where every rank gave ones. */
static float expected(void) { return is("all-reduce") || is("reduce") || is("reduce-scatter") ? (float)ranks : 1.0f; }

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    collective = argc > 1 ? argv[1] : "all-reduce";
    if (rank == 0)
        printf("ranks %d\n", ranks);
    for (int arg = 2; arg + 2 < argc; arg += 3) {
        size_t bytes = strtoull(argv[arg], NULL, 10);
        long iterations = strtol(argv[arg + 1], NULL, 10), warmup = strtol(argv[arg + 2], NULL, 10);
        float *send = malloc(bytes + 64), *receive = malloc(bytes + 64);
        if (send == NULL || receive == NULL) {
            fprintf(stderr, "no memory for two buffers of %zu bytes\n", bytes);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        int count = (int)(bytes / sizeof(float));
        for (int i = 0; i < count; i++)
            send[i] = 1.0f;
        memset(receive, 0, bytes);
        if (is("broadcast") && rank == 0)
            memcpy(receive, send, bytes);
        double apart = time_calls(send, receive, count, 0, warmup, iterations);
        int gets = !(is("reduce") || is("gather")) || rank == 0;
        if (gets && count >= ranks && receive[0] != expected()) {
            fprintf(stderr, "the first element of %zu bytes is %f\n", bytes, receive[0]);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        /* zeros stay zeros however often they are added */
        memset(receive, 0, bytes);
        memset(send, 0, bytes);
        double in_place = time_calls(send, receive, count, 1, warmup, iterations);
        if (rank == 0) {
            printf("%zu %.4f %.4f\n", bytes, apart, in_place);
            fflush(stdout);
        }
        free(send);
        free(receive);
    }
    MPI_Finalize();
    return 0;
}
