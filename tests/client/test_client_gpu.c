/* SPDX-License-Identifier: MIT
 *
 * test_client_gpu.c - libfccclient's ranks on GPUs: finding the GPU, its memory, and a driver that fails; with both fake
 * drivers.
 */
#include "tests/client/client_gpu_bed.h"

static void buffer_life(struct bed *b, enum fcc_memory_kind kind, int hip_version)
{
    unsigned char out[5000], in[5000];
    fcc_buffer *buffer;

    b->fake->memory_kind = kind;
    driver->hip_version = hip_version;
    memset(out, 0x5a, sizeof(out));
    if (fcc_buffer_alloc(b->comm, FCC_BUFFER_LOCAL, sizeof(out), &buffer))
        fail_msg("%s", fcc_last_error());
    assert_int_equal(fcc_buffer_read(buffer, 100, in, 4900), 0);
    assert_int_equal(in[0] | in[4899], kind == FCC_MEMORY_GPU_IPC ? in[0] | in[4899] : 0);
    assert_int_equal(fcc_buffer_write(buffer, 1, out, 4999), 0);
    assert_int_equal(fcc_buffer_read(buffer, 0, in, 5000), 0);
    assert_memory_equal(in + 1, out, 4999);
    assert_int_equal(((unsigned char *)fcc_buffer_data(buffer))[4999], 0x5a); /* the fake's memory is the CPU's too */
    assert_int_equal(fcc_buffer_write(buffer, 5000, out, 1), -EINVAL);
    driver->fail = DRIVER_copy_in;
    assert_int_equal(fcc_buffer_write(buffer, 0, out, 1), -EIO);
    assert_error_says("GPU 2: ");
    assert_error_says(": FAKE_FAILURE (made to fail)");
    driver->fail = DRIVER_stream_synchronize;
    assert_int_equal(fcc_buffer_read(buffer, 0, in, 1), -EIO);
    driver->fail = -1;
    driver->hip_version = b->comm->accelerator->import_by_fd ? 70100000 : 50221153;
    fcc_buffer_free(buffer);
}

static void test_buffers(void **state)
{
    struct bed b;
    fcc_buffer *buffer;

    (void)state;
    for (int hip = 0; hip < 2; hip++) {
        b = gpu_open((struct manner){hip ? FCC_DEVICE_HIP : FCC_DEVICE_CUDA, false, false}, 1);
        assert_int_equal(fcc_comm_device_kind(b.comm), hip ? FCC_DEVICE_HIP : FCC_DEVICE_CUDA);
        assert_int_equal(fcc_comm_device(b.comm), GPU);
        buffer_life(&b, FCC_MEMORY_GPU_FD, 50221153);
        buffer_life(&b, FCC_MEMORY_GPU_IPC, 50221153);
        buffer_life(&b, FCC_MEMORY_GPU_IPC, 70100000);
        b.fake->memory_kind = FCC_MEMORY_HOST;
        assert_int_equal(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, 1, &buffer), -EPROTO);
        assert_error_says("memory of kind 0: allowed are 1 and 2");
        b.fake->memory_kind = FCC_MEMORY_GPU_FD;
        assert_int_equal(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, 100, &buffer), 0); /* left to fcc_disconnect() */
        gpu_close(&b);
    }
    b = gpu_connect((struct manner){FCC_DEVICE_HIP, false, false}); /* which takes descriptors as they are */
    driver->hip_version = 70100000;
    assert_int_equal(fcc_comm_init(b.context, &(struct fcc_unique_id){{0}}, 1, 0, &on_gpu, &b.comm), 0);
    buffer_life(&b, FCC_MEMORY_GPU_FD, 70100000);
    fcc_comm_destroy(b.comm);
    gpu_close(&b);
}

/* Each call of the driver fails once: the text says which, and nothing is left. */
static void test_driver_fails(void **state)
{
    static const struct {
        enum driver_function function;
        int status;
        const char *cuda, *hip;
    } cases[] = {
        {DRIVER_init, -ENODEV, "cuInit", "hipInit"},
        {DRIVER_device_count, -ENODEV, "cuDeviceGetCount", "hipGetDeviceCount"},
        {DRIVER_device_uuid, -EIO, "cuDeviceGetUuid_v2", "hipDeviceGetUuid"},
        {DRIVER_context_retain, -EIO, "cuDevicePrimaryCtxRetain", NULL},
        {DRIVER_context_push, -EIO, "cuCtxPushCurrent_v2", NULL},
        {DRIVER_device_set, -EIO, NULL, "hipSetDevice"},
        {DRIVER_device_current, -EIO, NULL, "hipGetDevice"},
        {DRIVER_runtime_version, -EIO, NULL, "hipRuntimeGetVersion"},
        {DRIVER_device_attribute, -EIO, "cuDeviceGetAttribute", "hipDeviceGetAttribute"},
        {DRIVER_stream_create, -EIO, "cuStreamCreate", "hipStreamCreateWithFlags"},
        {DRIVER_host_register, -EIO, "cuMemHostRegister_v2", "hipHostRegister"},
        {DRIVER_host_address, -EIO, "cuMemHostGetDevicePointer_v2", "hipHostGetDevicePointer"},
        {DRIVER_memory_import, -EIO, "cuMemImportFromShareableHandle", "hipMemImportFromShareableHandle"},
        {DRIVER_address_reserve, -EIO, "cuMemAddressReserve", "hipMemAddressReserve"},
        {DRIVER_memory_map, -EIO, "cuMemMap", "hipMemMap"},
        {DRIVER_memory_access, -EIO, "cuMemSetAccess", "hipMemSetAccess"},
        {DRIVER_ipc_open, -EIO, "cuIpcOpenMemHandle_v2", "hipIpcOpenMemHandle"},
    };
    struct fcc_unique_id id = {{0}};
    fcc_buffer *buffer;

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        const char *name = i % 2 ? cases[i / 2].hip : cases[i / 2].cuda;
        struct bed b = gpu_connect((struct manner){i % 2 ? FCC_DEVICE_HIP : FCC_DEVICE_CUDA, false, false});
        int status;

        driver->fail = name ? (int)cases[i / 2].function : -1;
        if (cases[i / 2].function == DRIVER_ipc_open)
            b.fake->memory_kind = FCC_MEMORY_GPU_IPC;
        status = fcc_comm_init(b.context, &id, 1, 0, &on_gpu, &b.comm);
        if (!status)
            status = fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, 100, &buffer);
        assert_int_equal(status, name ? cases[i / 2].status : 0);
        if (name)
            assert_error_says(i % 2 ? "hip GPU 2: " : "cuda GPU 2: ");
        if (name)
            assert_error_says(name);
        driver->fail = -1;
        gpu_close(&b);
    }
}

static void test_gpu_is_not_visible(void **state)
{
    struct bed b = gpu_connect(manners[0]);
    struct fcc_unique_id id = {{0}};

    (void)state;
    driver->gpus = GPU;
    (void)setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
    assert_int_equal(fcc_comm_init(b.context, &id, 1, 0, &on_gpu, &b.comm), -ENOENT);
    assert_error_says("rank 0: cuda GPU 2 (UUID a2a2a2a2-a2a2-a2a2-a2a2-a2a2a2a2a2a2) is not among the 2");
    assert_error_says("its CUDA_VISIBLE_DEVICES, now 0,1, must");
    (void)unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(b.fake->calls[FCC_MSG_COMM_DESTROY], 1);
    driver->gpus = GPU + 1;
    assert_int_equal(fcc_comm_init(b.context, &id, 1, 0, &on_gpu, &b.comm), 0);
    gpu_close(&b);
}

static void *join_in_a_thread(void *arg)
{
    struct bed *b = arg;
    struct fcc_unique_id id = {{0}};
    fcc_comm *comm;

    return fcc_comm_init(b->context, &id, 1, 0, &on_gpu, &comm) ? b : NULL;
}

/* Ranks as threads: they share what they can. */
static void test_ranks_share_a_gpu(void **state)
{
    struct bed b = gpu_connect(manners[0]);
    pthread_t threads[8];
    void *failed;

    (void)state;
    for (int i = 0; i < 8; i++)
        (void)pthread_create(&threads[i], NULL, join_in_a_thread, &b);
    for (int i = 0; i < 8; i++) {
        (void)pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    b.fake->device_uuid = FAKE_UUID(1);
    assert_null(join_in_a_thread(&b));
    assert_int_equal(driver->contexts, 2);
    assert_int_equal(driver->registered, 1);
    gpu_close(&b);
}

int main(int argc, char *argv[])
{
    static const struct CMUnitTest tests[] = {
        T(test_buffers),
        T(test_driver_fails),
        T(test_gpu_is_not_visible),
        T(test_ranks_share_a_gpu),
    };

    (void)argc;
    run_again(argv);
    return cmocka_run_group_tests_name("client_gpu", tests, NULL, NULL);
}
